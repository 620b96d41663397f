"""The text and the JSON of an inspection show each quantised matrix once, with its parts and what is proved."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import numpy as np

from tests.inspection.quantised.stored_models import config, save, under
from tests.inspection.quantised.test_broken_matrices import COLUMNS, ROWS, WHOLE, stored
from tests.inspection.quantised.test_pair_relation import float_embedding, int8, weights
from tests.schemas import validate
from tieconv import inspect
from tieconv.reporters.text.inspect_text import render

EMBEDDING = {"model.embed_tokens.weight": stored("F32", ROWS, COLUMNS)}


def lines(folder: Path) -> list[str]:
    return [" ".join(line.split()) for line in render(inspect(folder)).splitlines()]


def test_text(tmp_path: Path) -> None:
    entries, parts = WHOLE["compressed-tensors pack-quantized"]
    printed = lines(save(tmp_path, config(ROWS, COLUMNS, **entries), EMBEDDING | under("lm_head", parts)))
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
        folder = save(tmp_path / scheme, config(ROWS, COLUMNS, **entries), EMBEDDING | under("lm_head", parts))
        document = json.loads(str(inspect(folder)))
        validate(document, schema)
        assert document["quantised"]["matrices"][0]["scheme"] == scheme
        assert set(document["quantised"]) <= set(schema["properties"]["quantised"]["properties"])
