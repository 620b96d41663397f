"""Map the tokens of a table on its first two principal directions, from one d×d sum. Imports numpy."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tieconv.analysis.alignment.linear import sums
from tieconv.analysis.alignment.token_tables import FEWEST, Array, Table, directed_rows
from tieconv.checkpoint.results.analysis import POINTS, Detail, Measure, Section
from tieconv.checkpoint.value_type import record


@record
class Shown(Detail):
    """The table of a map, the number of tokens with a direction, and the number that the map shows."""

    table: str
    tokens: int
    tokens_shown: int


def plane(
    table: Table, colours: Mapping[str, Array] | None = None, title: str = "Map", first: Array | None = None
) -> Section | None:
    """Return the map of at most `POINTS` tokens of a table on its first two principal directions, columns centred.

    ``colours`` maps a label to numbers by row (rows,), such as frequencies or differences, the most important first.
    The row norms follow. Up to half of the tokens are rows marked in ``first`` (rows,). Returns ``None`` if fewer than
    three rows have a direction.
    """
    joined = directed_rows(table)
    if joined.count < FEWEST:
        return None
    seen = sums(joined)
    energies, directions = np.linalg.eigh(seen.grams[0])
    energies = np.clip(energies[::-1], 0, None)
    chosen = _chosen(joined.count, None if first is None else first[joined.numbers[0]])
    rows = joined.take(0, chosen)
    spots = (rows - seen.means[0]) @ directions[:, ::-1][:, :2]
    series = {"plane_x": spots[:, 0], "plane_y": spots[:, -1]}
    for label, values in (colours or {}).items():
        series[f"plane_colour {label}"] = values[joined.numbers[0][chosen]]
    series["plane_colour row norm"] = np.linalg.norm(rows, axis=1)
    return Section(
        title,
        _sentence(table.name, energies),
        (_spread(energies, joined.count, table.width),),
        {name: tuple(float(f"{value:.5g}") for value in points) for name, points in series.items()},
        Shown(table.name, joined.count, len(chosen)),
    )


def _chosen(count: int, first: Array | None) -> Array:
    """Return the places to show, ascending: all, or `POINTS` spread evenly, half of them marked in ``first``."""
    if count <= POINTS:
        return np.arange(count)
    if first is None or not first.any():
        return _spread_over(np.arange(count), POINTS)
    chosen = _spread_over(np.flatnonzero(first), POINTS // 2)
    return np.union1d(chosen, _spread_over(np.setdiff1d(np.arange(count), chosen), POINTS - len(chosen)))


def _spread_over(places: Array, most: int) -> Array:
    spread: Array = places[np.linspace(0, len(places) - 1, min(most, len(places))).astype(int)]
    return spread


def _sentence(name: str, energies: Array) -> str:
    share = energies[:2].sum() / energies.sum() if energies.sum() > 0 else 0.0
    return f"The map shows {share:.0%} of the variance of the rows of {name}."


def _spread(energies: Array, rows: int, width: int) -> Measure:
    """Return the participation ratio over the width. The floor is one direction, the ceiling a Gaussian table."""
    squares = float(np.square(energies).sum())
    value = float(energies.sum()) ** 2 / squares / width if squares > 0 else None
    says = "participation ratio over width; 1 if all directions are used equally. The ceiling is a Gaussian table"
    return Measure("directions used", value, 1 / width, rows / (rows + width), rows, "share of width", says)
