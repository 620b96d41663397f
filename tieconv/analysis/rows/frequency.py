"""Fit a line through values by token and the log frequency of the tokens in a text."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tieconv.analysis.model.series import points
from tieconv.analysis.model.tables import Array
from tieconv.checkpoint.results.analysis import Measure
from tieconv.checkpoint.value_type import record

DISTINCT = 100
"""The fewest different tokens for a line through their frequencies."""


@record
class Line:
    """values ≈ slope·log p + start over the ``seen`` tokens of the text, in nats; ``None`` for too few tokens."""

    name: str
    slope: float | None
    start: float | None
    r2: float | None
    seen: int

    @property
    def measures(self) -> tuple[Measure, ...]:
        """Slope, R² and its floor, 1/(n − 1)."""
        if self.slope is None:
            says = f"the text has {self.seen} different tokens; a line needs {DISTINCT} with different frequencies"
            return (Measure(f"R², {self.name} from log p", None, n=self.seen, says=says),)
        says = "p is the frequency in the text; the counts of rare tokens are inexact, which lowers R²"
        floor = 1 / (self.seen - 1)
        return (
            Measure(f"slope, {self.name} on log p", self.slope, n=self.seen),
            Measure(f"R², {self.name} from log p", self.r2, floor=floor, ceiling=1.0, n=self.seen, says=says),
        )

    def to_dict(self) -> dict[str, object]:
        """Return the line as JSON values."""
        return {"slope": self.slope, "start": self.start, "r2": self.r2, "tokens": self.seen}


def line(name: str, values: Array, counts: Array) -> Line:
    """Return the least-squares line of ``values`` (V,) on log p. ``counts`` (V,) are the tokens of the text."""
    seen = np.flatnonzero((counts > 0) & np.isfinite(values))
    if len(seen) < DISTINCT or not np.ptp(counts[seen]):
        return Line(name, None, None, None, len(seen))
    log_p, fitted = np.log(counts[seen] / counts.sum()), values[seen]
    slope, start = np.polyfit(log_p, fitted, 1)
    r2 = float(np.corrcoef(log_p, fitted)[0, 1] ** 2) if np.ptp(fitted) else 0.0
    return Line(name, float(slope), float(start), r2, len(seen))


def by_frequency(rows: Mapping[str, Array], counts: Array) -> dict[str, tuple[float, ...]]:
    """Return the series ``log_p`` and each of ``rows`` (V,) for the tokens of the text, at most `POINTS` of them.

    Tokens are sorted from the rarest to the most frequent, then by id.
    """
    seen = np.flatnonzero(counts)
    seen = seen[np.argsort(counts[seen], kind="stable")]
    series = {"log_p": points(np.log(counts[seen] / counts.sum()))}
    return series | {name: points(values[seen]) for name, values in rows.items()}
