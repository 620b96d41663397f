"""A small ball around all rows of a table, searched in a few passes, for the certified bounds.

Any centre and the largest distance from it give a valid ball. The search only makes it smaller. It is the one by Bădoiu
and Clarkson on a core set of far rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from tieconv.analysis.model.tables import Array

CORE = 1024
"""Rows of the core set."""

ROUNDS = 3
"""Passes over the table after the first."""

STEPS = 400
"""Steps of the search on the core set."""

UP = 1 + 1e-9
"""Factor that rounds a radius up, to cover the rounding of its float64 sums."""

Blocks = Callable[[], Iterator[Array]]
"""A function called once for each pass, which yields the rows in blocks (n, d) of float64."""


def enclosing_ball(blocks: Blocks, width: int) -> tuple[Array, float]:
    """Return (centre (d,), radius) of a ball that holds every row, not larger than the ball around the mean row."""
    mean, count = np.zeros(width), 0
    for block in blocks():
        mean += block.sum(0)
        count += len(block)
    centre = mean / max(count, 1)
    radius, core = _farthest(blocks, centre, np.empty((0, width)))
    if not np.isfinite(radius):
        return centre, np.inf
    best = centre, radius
    for _ in range(ROUNDS):
        centre = _search(core, centre)
        radius, core = _farthest(blocks, centre, core)
        if radius < best[1]:
            best = centre, radius
    return best[0], best[1] * UP


def radius_about(blocks: Blocks, centre: Array) -> float:
    """Return the largest distance of a row from ``centre``, rounded up."""
    return _farthest(blocks, centre, np.empty((0, len(centre))))[0] * UP


def _farthest(blocks: Blocks, centre: Array, core: Array) -> tuple[float, Array]:
    """Return the largest distance from ``centre``, and the core set with the farthest rows added."""
    largest = 0.0
    for block in blocks():
        distances = np.linalg.norm(block - centre, axis=1)
        if not len(distances):
            continue
        farthest = float(distances.max())
        largest = max(largest, farthest) if np.isfinite(farthest) else np.inf  # NaN compares as false
        core = _far(np.concatenate([core, block[np.argsort(distances)[-CORE:]]]), centre)
    return largest, core


def _far(rows: Array, centre: Array) -> Array:
    distances = np.linalg.norm(rows - centre, axis=1)
    core: Array = rows[np.argsort(distances)[-CORE:]]
    return core


def _search(core: Array, centre: Array) -> Array:
    """Move the centre towards the farthest row in shorter and shorter steps."""
    for step in range(1, STEPS + 1):
        far = core[np.linalg.norm(core - centre, axis=1).argmax()]
        centre = centre + (far - centre) / (step + 1)
    return centre
