"""Which cases of a table run each time."""

from __future__ import annotations

import pytest


@pytest.mark.sampled(3)
@pytest.mark.parametrize("number", range(9))
def test_the_first_the_last_and_those_between(number: int, request: pytest.FixtureRequest) -> None:
    """Three of nine are not slow, in whatever order they are run."""
    assert (number in (0, 4, 8)) == (request.node.get_closest_marker("slow") is None)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("word", ["first", pytest.param("slow", marks=pytest.mark.slow), "last"])
def test_a_case_that_is_slow_by_itself_does_not_count(word: str, request: pytest.FixtureRequest) -> None:
    """One case is the first one."""
    assert (word == "first") == (request.node.get_closest_marker("slow") is None)
