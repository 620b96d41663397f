"""Series stay small and runs of rows are told as ranges."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tieconv.analysis.tables import points, ranges
from tieconv.checkpoint.results.analysis import POINTS, Analysis, Measure, Section


@given(st.integers(0, 3 * POINTS))
def test_series_are_thinned_out(length: int) -> None:
    """At most `POINTS` numbers, and both ends are kept."""
    found = points(np.arange(length, dtype=float))
    assert len(found) == min(length, POINTS)
    if length:
        assert (found[0], round(found[-1])) == (0.0, length - 1)


@given(st.sets(st.integers(0, 200)))
def test_ranges_hold_exactly_the_rows(rows: set[int]) -> None:
    """The ranges, when none is left out, hold the rows and nothing else."""
    found = ranges(np.array(sorted(rows), int), most=1000)
    assert {row for start, stop in found for row in range(start, stop)} == rows
    assert all(stop < after for (_, stop), (after, _) in pairwise(found))


def test_numbers_that_json_lacks_are_text() -> None:
    """An infinite bound prints as text, so that the document stays JSON."""
    section = Section("Bias", "", (Measure("bound", float("inf")),))
    document = Analysis("m", (section,), "alias", "").to_dict()
    assert document["sections"][0]["measures"][0]["value"] == "inf"  # type: ignore[index]
