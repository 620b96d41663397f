"""The JSON of each state: its keys, their order, and what is left out."""

from __future__ import annotations

import pytest

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
