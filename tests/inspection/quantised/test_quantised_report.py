"""What a config says of quantised tables, what a report shows of them, and classes that tieconv does not know."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from tests.inspection.quantised.stored_models import config, matrix, save, tables, under
from tests.inspection.quantised.test_broken_matrices import COLUMNS, ROWS, WHOLE, stored
from tests.inspection.quantised.test_pair_relation import float_embedding, int8, weights
from tests.loops import case
from tests.schemas import validate
from tieconv import inspect
from tieconv.checkpoint.family import Knowledge
from tieconv.checkpoint.finding import Level
from tieconv.checkpoint.quantised_matrix import EMBEDDING, HEAD, Verdict
from tieconv.inspection.quantised import matches_pattern, quantisation_settings
from tieconv.reporters.text.inspect_text import render

STORED_EMBEDDING = {"model.embed_tokens.weight": stored("F32", ROWS, COLUMNS)}


def lines(folder: Path) -> list[str]:
    return [" ".join(line.split()) for line in render(inspect(folder)).splitlines()]


def test_text(tmp_path: Path) -> None:
    entries, parts = WHOLE["compressed-tensors pack-quantized"]
    printed = lines(save(tmp_path, config(ROWS, COLUMNS, **entries), STORED_EMBEDDING | under("lm_head", parts)))
    head = "output head lm_head.weight [64, 128] compressed-tensors pack-quantized, 4 bits, groups of 32, 4.75 kB"
    assert "output head lm_head.weight quantised, stored in parts" in printed
    start = printed.index(head)
    assert printed[start + 1 : start + 6] == [
        "codes lm_head.weight_packed [64, 16] I32",
        "scales lm_head.weight_scale [64, 4] BF16",
        "zero points lm_head.weight_zero_point [8, 4] I32",
        "shape lm_head.weight_shape [2] I64",
        "config quantised (config_groups.g.targets: Linear)",
    ]
    assert printed[start + 6].startswith("head and embedding different; largest error")


def test_text_of_a_proved_copy(tmp_path: Path) -> None:
    tensors = float_embedding(weights()) | under("lm_head", int8(weights()))
    printed = lines(save(tmp_path, config(*weights().shape), tensors))
    (line,) = [line for line in printed if line.startswith("head and embedding")]
    assert line.startswith("head and embedding a quantised copy: every value rounds to its code; largest error")
    assert "of what rounding to nearest allows" in line


def test_text_of_equal_parts_and_a_tied_embedding(tmp_path: Path) -> None:
    parts = int8(weights())
    both = save(
        tmp_path / "both", config(*weights().shape), under("model.embed_tokens", parts) | under("lm_head", parts)
    )
    assert "head and embedding equal: the scheme and every byte of every part; 2.88 kB stored twice" in lines(both)
    entries, packed = WHOLE["compressed-tensors pack-quantized"]
    alone = save(tmp_path / "alone", config(ROWS, COLUMNS, True, **entries), under("model.embed_tokens", packed))
    assert "output head lm_head.weight not stored; the config ties it to the quantised embedding" in lines(alone)


def test_names_of_a_file_are_escaped(tmp_path: Path) -> None:
    """A scale of a strange type is printed without its control characters."""
    parts = int8(weights()) | {"weight_scale": ("F\x1b[31m", np.ones((40, 2), "<f4"))}
    folder = save(tmp_path, config(*weights().shape), float_embedding(weights()) | under("lm_head", parts))
    assert "\x1b" not in render(inspect(folder))


def test_json_of_every_scheme_follows_the_schema(tmp_path: Path) -> None:
    schema = json.loads((files("tieconv.reporters") / "schemas" / "inspect.schema.json").read_text("utf-8"))
    for scheme, (entries, parts) in WHOLE.items():
        folder = save(tmp_path / scheme, config(ROWS, COLUMNS, **entries), STORED_EMBEDDING | under("lm_head", parts))
        document = json.loads(str(inspect(folder)))
        validate(document, "inspect")
        assert document["quantised"]["matrices"][0]["scheme"] == scheme
        assert set(document["quantised"]) <= set(schema["properties"]["quantised"]["properties"])


QUANTISED, LEFT_OUT, UNDECIDED = Verdict.QUANTISED, Verdict.LEFT_OUT, Verdict.UNDECIDED


def ct(targets: list[str], ignore: list[str] | None = None) -> dict[str, Any]:
    groups = {"g": {"targets": targets, "weights": {"num_bits": 4, "group_size": 32, "symmetric": True}}}
    return {"quant_method": "compressed-tensors", "config_groups": groups, "ignore": ignore or []}


CASES: list[tuple[dict[str, Any], Verdict, Verdict, str]] = [
    (ct(["Linear"]), QUANTISED, LEFT_OUT, "a class"),
    (ct(["Linear"], ["lm_head"]), LEFT_OUT, LEFT_OUT, "the head ignored"),
    (ct(["Linear"], ["re:.*lm_head.*"]), LEFT_OUT, LEFT_OUT, "the head ignored by a pattern"),
    (ct(["re:.*lm_head$"]), QUANTISED, LEFT_OUT, "a pattern"),
    (ct(["re:.*embed_tokens$", "Linear"], ["lm_head"]), LEFT_OUT, QUANTISED, "the embedding alone"),
    (ct(["re:(?=.*lm_head).*"]), UNDECIDED, UNDECIDED, "a pattern that is not decided"),
    ({"quant_method": "gptq", "bits": 4, "lm_head": True}, QUANTISED, UNDECIDED, "GPTQ with the head"),
    ({"quant_method": "gptq", "bits": 4}, LEFT_OUT, UNDECIDED, "GPTQ"),
    ({"quant_method": "gptq", "bits": 4, "dynamic": {"-:lm_head": {}}}, UNDECIDED, UNDECIDED, "GPTQ with exceptions"),
    ({"quant_method": "awq", "bits": 4, "modules_to_not_convert": ["lm_head"]}, LEFT_OUT, UNDECIDED, "AWQ without"),
    ({"quant_method": "awq", "bits": 4, "lm_head": True}, QUANTISED, UNDECIDED, "AWQ with the head"),
    ({"quant_method": "bitsandbytes", "load_in_4bit": True}, LEFT_OUT, LEFT_OUT, "bitsandbytes by default"),
    (
        {"quant_method": "bitsandbytes", "load_in_8bit": True, "llm_int8_skip_modules": ["none"]},
        QUANTISED,
        LEFT_OUT,
        "bitsandbytes with the head",
    ),
    ({"quant_method": "fp8", "modules_to_not_convert": ["lm_head"]}, LEFT_OUT, UNDECIDED, "FP8 without the head"),
    ({"quant_method": "fp8"}, LEFT_OUT, UNDECIDED, "FP8 without a list"),
    ({"quant_method": "fp8", "modules_to_not_convert": ["gate"]}, QUANTISED, UNDECIDED, "FP8"),
    ({"quant_method": "torchao", "include_input_output_embeddings": True}, QUANTISED, QUANTISED, "torchao with both"),
    ({"quant_method": "hqq", "skip_modules": ["lm_head"]}, LEFT_OUT, UNDECIDED, "HQQ"),
    ({"quant_method": "quanto", "modules_to_not_convert": ["model"]}, QUANTISED, LEFT_OUT, "quanto"),
    ({"quant_method": "of next year", "bits": 4}, UNDECIDED, UNDECIDED, "a method that tieconv does not know"),
]


def test_verdicts() -> None:
    for level in ["", "text_config"]:
        for values, head, embedding, name in CASES:
            with case(name, level):
                config = {level: {"quantization_config": values}} if level else {"quantization_config": values}
                settings = quantisation_settings(config)
                assert settings.path == (f"{level}.quantization_config" if level else "quantization_config")
                assert settings.choice("lm_head", HEAD).verdict is head
                assert settings.choice("model.embed_tokens", EMBEDDING).verdict is embedding


def test_mlx_overrides_by_path() -> None:
    values = {"bits": 4, "group_size": 64, "lm_head": {"bits": 8, "group_size": 32}, "model.embed_tokens": False}
    settings = quantisation_settings({"quantization_config": values, "quantization": values})  # as MLX writes both
    assert (settings.method, settings.path) == ("mlx", "quantization")
    choice = settings.choice("lm_head", HEAD)
    assert (choice.bits, choice.group, choice.layout) == (8, 32, "affine")
    assert settings.choice("model.embed_tokens", EMBEDDING).verdict is LEFT_OUT


def test_an_entry_of_mlx_does_not_inherit() -> None:
    """`mlx_lm.convert --q-mode mxfp4` writes 8 bits without a mode for the head of Granite: MLX reads it as affine."""
    values = {"bits": 4, "group_size": 32, "mode": "mxfp4", "lm_head": {"bits": 8}, "embed": {"mode": "nvfp4"}}
    settings = quantisation_settings({"quantization": values})
    choices = [settings.choice(module, HEAD) for module in ("lm_head", "embed", "none")]
    assert [(choice.bits, choice.group, choice.layout) for choice in choices] == [
        (8, 64, "affine"), (None, None, "nvfp4"), (4, 32, "mxfp4"),
    ]  # fmt: skip


def test_no_quantisation() -> None:
    assert quantisation_settings({"hidden_size": 4, "text_config": {"a": 1}}).path == ""


PIECES = st.lists(
    st.sampled_from(["lm", "_head", r"\.", ".", ".*", "model", "(a|b)", "(?:lm|x.*)", "head", "embed_tokens"]),
    max_size=6,
)


@given(PIECES, st.booleans(), st.booleans(), st.sampled_from(["lm_head", "model.embed_tokens", "a.lm_head", "b", ""]))
def test_patterns_match_as_python_matches_them(pieces: list[str], start: bool, end: bool, name: str) -> None:
    pattern = "^" * start + "".join(pieces) + "$" * end
    decided = matches_pattern(pattern, name)
    assert decided is None or decided is (re.match(pattern, name) is not None)
    if not any(piece.startswith("(") for piece in pieces):
        assert decided is not None


@pytest.mark.parametrize("pattern", ["(a+)+$", "[a-z]*", r"\d+", "a{2}", "(?i)x", "a|b", "((a|b)|c)", "x" * 1000])
def test_other_patterns_are_undecided(pattern: str) -> None:
    assert matches_pattern(pattern, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!") is None


def test_a_pattern_of_many_wildcards_is_quick() -> None:
    assert matches_pattern(".*a" * 150 + "$", "a" * 10_000 + "b") is False


SCHEMES = [scheme for scheme in WHOLE if scheme not in ("HQQ", "bitsandbytes 4 bit")]
"""HQQ has no shape that tieconv reads, and that of bitsandbytes is in bytes that are not read for a guess."""


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("both", [False, True])
def test_the_pair(scheme: str, both: bool, tmp_path: Path) -> None:
    entries, parts = WHOLE[scheme]
    unknown = config(ROWS, COLUMNS, **entries) | {"architectures": ["NewForCausalLM"], "model_type": "new"}
    embedding = {"model.embed_tokens.weight": stored("F32", ROWS, COLUMNS)}
    tensors = (under("model.embed_tokens", parts) if both else embedding) | under("lm_head", parts)
    inspection = inspect(save(tmp_path, unknown, tensors))
    assert inspection.family.knowledge is Knowledge.PATTERN
    assert matrix(inspection).shape == (ROWS, COLUMNS)
    assert len(tables(inspection).matrices) == 1 + both
    assert [finding for finding in inspection.findings if finding.level is Level.ERROR] == []
