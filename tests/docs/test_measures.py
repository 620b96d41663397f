"""The page that defines the measures of alignment agrees with the code."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

pytest.importorskip("numpy")

from tieconv.analysis.alignment_measures import NEIGHBOURS, PAIRS, expected
from tieconv.reporters.html.svg import NAMES

PAGE = Path(__file__).parents[2] / "docs" / "alignment.md"
ROWS = dict(re.findall(r"^\| `([a-z ]+)` \| (.* \|)$", PAGE.read_text("utf-8").partition("### Samples")[0], re.M))
FORMULAS = {
    "8/(3π)·√(d/V)": lambda v, d: 8 / (3 * math.pi) * math.sqrt(d / v),
    "√(d/V)": lambda v, d: math.sqrt(d / v),
    "d/(V+d)": lambda v, d: d / (v + d),
    "0": lambda v, d: 0.0,
}


def test_every_measure_is_defined() -> None:
    """No measure of the report lacks a row with a meaning, its chance value and its source."""
    assert set(ROWS) == set(NAMES)
    for name, row in ROWS.items():
        meaning, chance, source = (cell.strip() for cell in row.strip("| ").split(" | "))
        assert meaning and chance and re.search(r"arXiv \d{4}\.\d{5}|\b(19|20)\d\d\b|arXiv \d{4}\.\d{4}", source), name


@pytest.mark.parametrize("name", ["identity", "procrustes", "least squares", "cka"])
def test_the_formula_is_the_codes(name: str) -> None:
    """The chance value of unrelated Gaussian tables."""
    chance = ROWS[name].split(" | ")[1]
    assert expected(name, 50_000, 2048) == pytest.approx(FORMULAS[chance](50_000, 2048))


def test_the_sizes_of_samples_are_the_codes() -> None:
    assert f"the {NEIGHBOURS} nearest tokens" in ROWS["knn"] and f"| {NEIGHBOURS}/(V-1) |" in ROWS["knn"]
    assert f"{PAIRS:,} random pairs" in ROWS["rsa"]
