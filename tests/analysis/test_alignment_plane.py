"""The map of tokens and the share of directions, on tables whose answers are known."""

from __future__ import annotations

import numpy as np
import pytest

from tieconv.analysis.alignment_measures import plane
from tieconv.analysis.token_tables import Table
from tieconv.checkpoint.results.analysis import POINTS


@pytest.fixture
def chance() -> np.random.Generator:
    return np.random.default_rng(11)


def test_plane_finds_the_wide_directions(chance: np.random.Generator) -> None:
    """Two planted directions come back as the axes, up to sign, whatever the mean; the sentence tells their share."""
    spots = np.linalg.qr(chance.normal(size=(500, 2)))[0] * (50, 30)  # at right angles: then they are the axes
    basis = np.linalg.qr(chance.normal(size=(16, 2)))[0].T
    section = plane(Table.of("t", (spots @ basis + 7).astype(np.float32)))
    for axis, name in enumerate(("plane_x", "plane_y")):
        assert abs(np.corrcoef(section.series[name], spots[:, axis])[0, 1]) > 0.99
    assert "100%" in section.sentence


@pytest.mark.parametrize("rows", [300, 6000])
def test_directions_used(rows: int, chance: np.random.Generator) -> None:
    """A Gaussian table reaches the ceiling V/(V+d), a table of one direction the floor 1/d."""
    (measure,) = plane(Table.of("t", chance.normal(size=(rows, 40)).astype(np.float32))).measures
    assert measure.value == pytest.approx(measure.ceiling, abs=0.02) and measure.ceiling == rows / (rows + 40)
    line = np.outer(chance.normal(size=rows), np.ones(40)).astype(np.float32)
    (measure,) = plane(Table.of("t", line)).measures
    assert measure.value == pytest.approx(1 / 40, rel=1e-3) and measure.floor == 1 / 40


def test_colours_follow_their_rows(chance: np.random.Generator) -> None:
    """A row of zeros drops out with its colour, and long tables are thinned to `POINTS`."""
    table = chance.normal(size=(POINTS + 100, 4)).astype(np.float32)
    table[5] = 0
    series = plane(Table.of("t", table), {"number": np.arange(len(table))}).series
    colours = series["plane_colour number"]
    assert {len(points) for points in series.values()} == {POINTS} and 5 not in colours
    assert colours[0] == 0 and colours[-1] == pytest.approx(len(table) - 1, rel=1e-4)


def test_marked_rows_are_shown_first(chance: np.random.Generator) -> None:
    """Of a long table every marked row is shown, up to half of the points, and no row twice."""
    rows = 5 * POINTS
    table = Table.of("t", chance.normal(size=(rows, 4)).astype(np.float32))
    for marked, expected in ((10, 10), (rows, None)):
        first = np.zeros(rows, bool)
        first[chance.permutation(rows)[:marked]] = True
        series = plane(table, {"place": np.arange(rows), "mark": first.astype(float)}, first=first).series
        assert len(set(series["plane_colour place"])) == len(series["plane_x"]) <= POINTS
        assert len(series["plane_x"]) >= POINTS - 1
        if expected is not None:
            assert sum(series["plane_colour mark"]) == expected


def test_too_few_rows() -> None:
    """Two rows make no plane."""
    assert plane(Table.of("t", np.ones((2, 4), np.float32))) is None


def test_what_float32_cannot_sum_is_not_drawn(chance: np.random.Generator) -> None:
    """Rows so long that their products overflow have no map, and are no error."""
    assert plane(Table.of("t", (chance.normal(size=(300, 16)) * 1e36).astype(np.float32))) is None
