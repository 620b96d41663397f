"""Which cases of a test run each time; the others are `slow`."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def fast_only(cases: Iterable[Any], fast: Collection[Any]) -> list[Any]:
    """The cases as parameters, `slow` unless one is in ``fast``. A row of values is found by its first value that fits.

    Raises `ValueError` if ``fast`` has a case that does not exist.
    """
    made, found = [], []
    for case in cases:
        values = case if isinstance(case, tuple) else (case,)
        hits = [name for name in fast if name == case or name in values]
        found += hits
        made.append(pytest.param(*values, marks=() if hits else pytest.mark.slow))
    if missing := [name for name in fast if name not in found]:
        raise ValueError(f"no such case: {missing}")
    return made
