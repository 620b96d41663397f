"""Which cases of a test run each time; the others are `slow`."""

from __future__ import annotations

from collections import defaultdict
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


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of a test that is `sampled(COUNT)`, so many cases run each time, spread over its table; the others are `slow`."""
    tables: dict[tuple[str, int], list[pytest.Function]] = defaultdict(list)
    for item in items:
        marker = item.get_closest_marker("sampled")
        if marker and isinstance(item, pytest.Function) and not item.get_closest_marker("slow"):
            tables[item.nodeid.partition("[")[0], marker.args[0]].append(item)
    for (_, count), cases in tables.items():
        cases.sort(key=lambda case: [*case.callspec.indices.values()])  # another plugin may have shuffled them
        chosen = {round(number * (len(cases) - 1) / max(count - 1, 1)) for number in range(count)}
        for number, case in enumerate(cases):
            if number not in chosen:
                case.add_marker(pytest.mark.slow)
