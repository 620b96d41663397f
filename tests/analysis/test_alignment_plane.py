"""The map of tokens and the share of directions, on tables whose answers are known."""

from __future__ import annotations

import numpy as np
import pytest

from tieconv.analysis.alignment_plane import plane
from tieconv.analysis.alignment_tables import Table
from tieconv.checkpoint.analysis import POINTS
from tieconv.errors import RefusedError

chance = np.random.default_rng(11)


def test_plane_finds_the_wide_directions() -> None:
    """Two planted directions come back as the axes, up to sign, whatever the mean; the sentence tells their share."""
    spots = chance.normal(size=(500, 2)) * (5, 3)
    basis = np.linalg.qr(chance.normal(size=(16, 2)))[0].T
    section = plane(Table.of("t", (spots @ basis + 7).astype(np.float32)))
    for axis, name in enumerate(("plane_x", "plane_y")):
        assert abs(np.corrcoef(section.series[name], spots[:, axis])[0, 1]) > 0.99
    assert "100%" in section.sentence


@pytest.mark.parametrize("rows", [300, 6000])
def test_directions_used(rows: int) -> None:
    """A Gaussian table reaches the ceiling V/(V+d), a table of one direction the floor 1/d."""
    (measure,) = plane(Table.of("t", chance.normal(size=(rows, 40)).astype(np.float32))).measures
    assert measure.value == pytest.approx(measure.ceiling, abs=0.02) and measure.ceiling == rows / (rows + 40)
    line = np.outer(chance.normal(size=rows), np.ones(40)).astype(np.float32)
    (measure,) = plane(Table.of("t", line)).measures
    assert measure.value == pytest.approx(1 / 40, rel=1e-3) and measure.floor == 1 / 40


def test_colours_follow_their_rows() -> None:
    """A row of zeros drops out with its colour, and long tables are thinned to `POINTS`."""
    table = chance.normal(size=(POINTS + 100, 4)).astype(np.float32)
    table[5] = 0
    series = plane(Table.of("t", table), np.arange(len(table)), "number").series
    colours = series["plane_colour number"]
    assert {len(points) for points in series.values()} == {POINTS} and 5 not in colours
    assert colours[0] == 0 and colours[-1] == pytest.approx(len(table) - 1, rel=1e-4)


def test_too_few_rows() -> None:
    """Two rows make no plane."""
    with pytest.raises(RefusedError):
        plane(Table.of("t", np.ones((2, 4), np.float32)))
