"""The JSON of each state, and the one definition of a shape that fits."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest

import tieconv as api
from tests.checks.fixtures.model import HEAD, LLAMA, flagged, matrix, save
from tieconv.architectures.effective_flag import vocabulary_rows
from tieconv.checkpoint.inspection import NotCompared
from tieconv.checkpoint.relation import Absent, Aliased, Canonical
from tieconv.checkpoint.relation.proved import (
    Cast,
    Different,
    Empty,
    Identical,
    Near,
    OtherBytes,
    OtherSample,
    OtherShape,
    Relation,
    RowFigures,
    Scaled,
    Transposed,
    Unread,
)
from tieconv.checkpoint.weight_file import ByteRange, TensorRecord, fits
from tieconv.loaders.load import TRANSFORMERS_5, load
from tieconv.loaders.loaded import Cause

FIGURES = RowFigures(1, 8, ((7, 8),), True, None, 0.5, None, False, 0)
IN_JSON = {
    "rows_differing": 1,
    "rows": 8,
    "row_ranges": [[7, 8]],
    "rows_listed_completely": True,
    "max_ulp": None,
    "max_abs": 0.5,
    "relative_rms": None,
    "sign_of_zero_only": False,
    "nan_rows": 0,
}


@pytest.mark.parametrize(
    ("relation", "state", "detail"),
    [
        (Canonical(), "canonical", {}),
        (Absent(), "absent", {}),
        (Aliased(), "aliased", {}),
        (Identical(), "identical", {}),
        (Identical(by="file hash", nan=True), "identical", {"by": "file hash", "nan": True}),
        (Transposed(), "transposed", {}),
        (Transposed(view=True), "transposed", {"view": True}),
        (Transposed(transposed=True, nan=True), "transposed", {"transposed": True, "nan": True}),
        (Cast("a", "b", False), "cast", {"exact": "a", "narrow": "b", "lossless": False}),
        (
            Cast("a", "b", True, True, True),
            "cast",
            {"exact": "a", "narrow": "b", "lossless": True, "transposed": True, "nan": True},
        ),
        (
            Scaled(float("inf"), False, False, 0, "a"),
            "scaled",
            {"factor": "inf", "exact": False, "power_of_two": False, "max_ulp": 0, "rounded": "a"},
        ),
        (
            Scaled(2.0, True, True, 0, "a", transposed=True),
            "scaled",
            {"factor": 2.0, "exact": True, "power_of_two": True, "max_ulp": 0, "rounded": "a", "transposed": True},
        ),
        (Near(FIGURES), "near", IN_JSON),
        (Near(FIGURES, transposed=True), "near", {**IN_JSON, "transposed": True}),
        (Different(FIGURES, None), "distinct", {**IN_JSON, "cosine": None}),
        (Different(FIGURES, 0.25, transposed=True), "distinct", {**IN_JSON, "cosine": 0.25, "transposed": True}),
        (Empty(), "distinct", {"empty": True}),
        (Empty(transposed=True), "distinct", {"empty": True, "transposed": True}),
        (OtherShape((2, 3), (3,)), "distinct", {"shape": [2, 3], "canonical_shape": [3]}),
        (
            OtherShape((2, 3), (4, 3), 0, -2),
            "distinct",
            {"shape": [2, 3], "canonical_shape": [4, 3], "rows_equal": 0, "extra_rows": -2},
        ),
        (
            OtherShape((2, 3), (3,), transposed=True),
            "distinct",
            {"shape": [2, 3], "canonical_shape": [3], "transposed": True},
        ),
        (OtherBytes("quantised"), "distinct", {"reason": "quantised"}),
        (OtherBytes("quantised", transposed=True), "distinct", {"reason": "quantised", "transposed": True}),
        (OtherSample(((0, 64),)), "distinct", {"sampled": True, "ranges_differing": [[0, 64]]}),
        (Unread(), "unread", {}),
        (
            Unread(sampled=True, ranges_equal=((0, 64),), reason="why"),
            "unread",
            {"sampled": True, "ranges_equal": [[0, 64]], "reason": "why"},
        ),
        (Unread(transposed=True, reason="why"), "unread", {"transposed": True, "reason": "why"}),
    ],
)
def test_json_of_a_state(relation: Relation, state: str, detail: dict[str, object]) -> None:
    assert str(relation.state) == state
    assert list(relation.to_dict().items()) == list(detail.items())


def test_states_without_figures_are_values() -> None:
    assert Absent() == Absent() and hash(Absent()) == hash(Absent())
    assert Absent() != Canonical() and Identical() != Aliased()


EMBEDDING = "model.embed_tokens.weight"
ROOT = Path(__file__).parents[2] / "tieconv"
USERS = ("architectures/effective_flag.py", "checks/evidence.py", "loaders/evidence.py")


def tensor(*shape: int) -> TensorRecord:
    return TensorRecord("t", "F32", shape, ByteRange("f", 0, 0))


@pytest.mark.parametrize(
    ("shape", "reference", "expected"),
    [
        ((8, 4), (8, 4), True),
        ((9, 4), (8, 4), False),
        ((4, 8), (8, 4), False),  # transposed
        ((4, 4), (4, 4), True),  # transposed or not, a square matrix has one shape
        ((0,), (8, 4), False),  # a placeholder
        ((8, 4), (0,), False),
        ((0, 4), (8, 4), False),
        ((0,), (0,), True),
        ((0, 4), (0,), False),
        ((8,), (8,), True),
        ((8,), (8, 1), False),
        ((), (1,), False),
    ],
)
def test_a_shape_fits(shape: tuple[int, ...], reference: tuple[int, ...], expected: bool) -> None:
    """Equal shapes fit, whatever they hold; and the answer is the same the other way round."""
    assert fits(tensor(*shape), tensor(*reference)) is fits(tensor(*reference), tensor(*shape)) is expected


@pytest.mark.parametrize("shape", [(9, 4), (4, 8), (0,), (0, 4)])
def test_loaders_rules_and_sizes_agree(shape: tuple[int, ...], tmp_path: Path) -> None:
    """A tied head that does not fit: transformers 5 refuses it, a rule reports it, and its rows are not counted."""
    config = {**flagged(LLAMA, True), "vocab_size": 8}
    head = np.ones(shape, dtype="<f4")
    model = api.inspect(save(tmp_path / "m", config, {EMBEDDING: matrix(8, 4), HEAD: head}))
    assert load(model, TRANSFORMERS_5).refused(Cause.SHAPES) is not None
    assert {"TIE010", "STO002"} & {finding.rule for finding in model.findings}
    assert HEAD not in vocabulary_rows(model)
    assert not any(finding.remedy and " untie " in finding.remedy.command for finding in model.findings)


@pytest.mark.parametrize("module", USERS)
def test_no_module_compares_shapes_of_a_group_itself(module: str) -> None:
    """Each asks `fits`."""
    tree = ast.parse((ROOT / module).read_text(encoding="utf-8"))
    compared = [node for node in ast.walk(tree) if isinstance(node, ast.Compare) and ".shape !=" in ast.unparse(node)]
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert not compared and "fits" in {alias.name for node in imports for alias in node.names}


def test_tensors_that_may_be_copies() -> None:
    """Those of one type and shape, but for one of each form; empty ones waste nothing."""
    pair, alone, empty = (
        TensorRecord("t", "F32", shape, ByteRange("f", 0, 4 * shape[0] * shape[1]))
        for shape in ((2, 3), (3, 2), (0, 4))
    )
    assert NotCompared.among([pair, alone, pair, pair, empty, empty]) == NotCompared(3, 48)
    assert NotCompared.among([pair, alone, pair]) == NotCompared(2, 24)
    assert NotCompared.among([pair, alone]) is None
