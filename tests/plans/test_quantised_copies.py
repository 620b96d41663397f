"""Dedup and convert of a model with quantised tables: all parts of a matrix stay together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tieconv
from tests.inspection.quantised.table_models import (
    AWQ,
    BNB,
    GPTQ,
    MLX_CONFIG,
    NAMED,
    awq,
    bitsandbytes,
    equal,
    gptq,
    mlx,
    model,
    packed,
)

SCHEMES = ((packed, NAMED), (gptq, GPTQ), (awq, AWQ), (bitsandbytes, BNB), (mlx, MLX_CONFIG))


def names(folder: Path) -> set[str]:
    return set(tieconv.inspect(folder).checkpoint.tensors)


@pytest.mark.parametrize(("make", "entries"), SCHEMES)
@pytest.mark.parametrize("tied", [True, False])
def test_dedup_never_drops_one_part(make: Any, entries: dict[str, Any], tied: bool, tmp_path: Path) -> None:
    """Codes of the head that equal the embedding's stay, because their scales stay too."""
    source = model(tmp_path / "m", equal(make), entries, tied, "qq")
    plan = tieconv.plan_dedup(source)
    assert plan.plan.changes_nothing
    if make in (mlx, bitsandbytes) and tied:
        assert any("tieconv retie drops all parts together" in note for note in plan.plan.notes)


@pytest.mark.parametrize(("make", "entries"), SCHEMES)
@pytest.mark.parametrize(("tied", "pair"), [(True, "q0"), (False, "qq"), (False, "fq"), (False, "qf")])
def test_convert_keeps_all_parts(make: Any, entries: dict[str, Any], tied: bool, pair: str, tmp_path: Path) -> None:
    """To torch and back, and into shards: the same names, the same relation, the same function."""
    source = model(tmp_path / "m", equal(make), entries, tied, pair)
    tieconv.plan_convert("torch", source).execute(tmp_path / "torch")
    tieconv.plan_convert("safetensors", tmp_path / "torch", max_shard_size=3000).execute(tmp_path / "back")
    for folder in (tmp_path / "torch", tmp_path / "back"):
        assert names(folder) == names(source)
        before, after = tieconv.inspect(source).quantised, tieconv.inspect(folder).quantised
        assert before is not None and after is not None and before.relation == after.relation
        assert [matrix.shape for matrix in before.matrices] == [matrix.shape for matrix in after.matrices]
        assert tieconv.diff(source, folder).same_function


def test_diff_names_the_matrix(tmp_path: Path) -> None:
    """Its parts are tensors of the diff, and a note joins them."""

    def other_scales(number: int) -> Any:
        return packed(number) | {"weight_scale": packed(number + 5)["weight_scale"]}

    source = model(tmp_path / "a", packed, NAMED, False, "fq")
    comparison = tieconv.diff(source, model(tmp_path / "b", other_scales, NAMED, False, "fq"))
    assert not comparison.same_function
    assert "lm_head.weight is one quantised matrix in 3 parts, and lm_head.weight_scale differs" in comparison.notes
    tieconv.plan_untie(model(tmp_path / "tied", packed, NAMED, True, "q0")).execute(tmp_path / "untied")
    notes = tieconv.diff(tmp_path / "tied", tmp_path / "untied").notes
    assert any("lm_head.weight is one quantised matrix" in note and "weight_packed" in note for note in notes)
