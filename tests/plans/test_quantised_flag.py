"""Set-tie of a quantised embedding and head: the flag must fit what the parts prove."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import tieconv
from tests.inspection.quantised.table_models import AWQ, GPTQ, MLX_CONFIG, NAMED, awq, equal, gptq, mlx, model, packed
from tieconv.plans.config import Modules, _awq


def flag(folder: Path, value: str, **options: Any) -> object:
    """The flag that set-tie writes, or the code of its refusal."""
    try:
        plan = tieconv.plan_set_tie(value, folder, **options)
    except tieconv.RefusedError as error:
        return error.code
    plan.execute(folder.parent / "out")
    return json.loads((folder.parent / "out" / "config.json").read_text())["tie_word_embeddings"]


@pytest.mark.parametrize(("make", "entries"), [(packed, NAMED), (awq, AWQ), (mlx, MLX_CONFIG)])
class TestTheFlagContradicts:
    """Both matrices are stored with all their parts, and the config says tied."""

    @pytest.mark.parametrize("pair", ["fq", "qq", "qf"])
    @pytest.mark.parametrize("value", ["false", "auto"])
    def test_false(self, make: Any, entries: dict[str, Any], pair: str, value: str, tmp_path: Path) -> None:
        # transformers reads AWQ codes only inside the blocks, so an untied head would be random.
        expected = "meaning.refused" if make is awq and pair != "qq" else False
        assert flag(model(tmp_path / "m", make, entries, True, pair), value) == expected

    @pytest.mark.parametrize("pair", ["fq", "qq", "qf"])
    @pytest.mark.parametrize("tied", [True, False])
    def test_true_needs_equal_parts(
        self, make: Any, entries: dict[str, Any], pair: str, tied: bool, tmp_path: Path
    ) -> None:
        assert flag(model(tmp_path / "m", make, entries, tied, pair), "true") == "set-tie.discards"

    @pytest.mark.parametrize("tied", [True, False])
    def test_no_head_is_stored(self, make: Any, entries: dict[str, Any], tied: bool, tmp_path: Path) -> None:
        source = model(tmp_path / "m", make, entries, tied, "q0")
        assert flag(source, "false") == "set-tie.random"
        assert flag(source, "auto") is True


def test_equal_parts_may_be_tied(tmp_path: Path) -> None:
    """A note says that the copy stays."""
    source = model(tmp_path / "m", equal(packed), NAMED, False, "qq")
    assert any("tieconv retie drops them" in note for note in tieconv.plan_set_tie("true", source).plan.notes)
    assert flag(source, "auto") is True


def test_mlx_lm_decides_for_its_files(tmp_path: Path) -> None:
    """It fails at a tied model that stores codes for the head."""
    source = model(tmp_path / "m", equal(mlx), MLX_CONFIG, False, "qq")
    assert flag(source, "true") == "meaning.refused"
    assert flag(source, "true", force=True) is True


@pytest.mark.parametrize(("make", "entries"), [(gptq, GPTQ), (awq, AWQ)])
def test_transformers_decides(make: Any, entries: dict[str, Any], tmp_path: Path) -> None:
    """With the flag true it uses the embedding as the head, with the flag false random numbers."""
    source = model(tmp_path / "m", make, entries, True, "fq")
    assert flag(source, "false") == "meaning.refused"
    assert flag(source, "false", force=True) is False


def test_broken_matrices(tmp_path: Path) -> None:
    def without_scales(number: int) -> Any:
        return {leaf: part for leaf, part in packed(0).items() if leaf != "weight_scale"}

    source = model(tmp_path / "m", without_scales, NAMED, True, "fq")
    assert flag(source, "false") == "quantised.broken"


def test_unread_tables_leave_auto_open(tmp_path: Path) -> None:
    """tieconv claims nothing about values that it did not compare."""

    def packed_unknown(number: int) -> Any:
        return {"W_q": packed(number)["weight_packed"], "scale": packed(number)["weight_scale"]}

    source = model(tmp_path / "m", packed_unknown, {"quantization_config": {"quant_method": "hqq"}}, True, "fq")
    assert flag(source, "auto") in ("set-tie.ambiguous", "quantised.broken")


@pytest.mark.parametrize(
    ("values", "listing", "entries"),
    [
        ({}, False, {}),
        ({"modules_to_not_convert": ["a"]}, False, {("modules_to_not_convert",): ("a", "lm_head")}),
        ({"modules_to_not_convert": ["lm_head"]}, False, {}),
        ({"modules_to_not_convert": ["a", "lm_head"]}, True, {("modules_to_not_convert",): ("a",), ("lm_head",): True}),
        ({"lm_head": True}, False, {("lm_head",): False}),
        ({"lm_head": True}, True, {}),
    ],
)
def test_entries_of_awq(values: dict[str, Any], listing: bool, entries: dict[tuple[str, ...], Any]) -> None:
    """A list of modules in floats is kept in step, and none is made for a head in floats."""
    assert _awq(values, Modules("model.embed_tokens", "lm_head", ()), listing) == entries
