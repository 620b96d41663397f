"""What a config says about the head and the embedding, and patterns that are matched without running them."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tieconv.checkpoint.quantised_matrix import EMBEDDING, HEAD, Verdict
from tieconv.inspection.quantised import matches_pattern, quantisation_settings

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


@pytest.mark.parametrize(("values", "head", "embedding", "name"), CASES, ids=[case[-1] for case in CASES])
@pytest.mark.parametrize("level", ["", "text_config"])
def test_verdicts(values: dict[str, Any], head: Verdict, embedding: Verdict, name: str, level: str) -> None:
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
