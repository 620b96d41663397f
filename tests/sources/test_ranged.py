"""Requests in parallel: which ranges share one, and what a failure leaves behind."""

from __future__ import annotations

from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from tieconv.checkpoint.weight_file import ByteRange
from tieconv.sources.ranged import RangedFiles, concurrently


def test_ranges_are_announced_together() -> None:
    """Two ranges or more are asked for at once, and neighbours in one request."""
    for starts, requests in (((), 0), ((0,), 0), ((0, 1 << 20), 2), ((0, 100), 1), ((0, 100, 1 << 20), 2)):
        asked: list[tuple[str, int, int]] = []
        files: Any = SimpleNamespace(_travels=lambda _: True, _missing=lambda *span, asked=asked: asked.append(span))
        RangedFiles.announce(files, [ByteRange("a", start, start + 8) for start in starts])
        assert len(asked) == requests, starts


def test_a_failure_does_not_wait_for_requests_that_run() -> None:
    """The other request goes on, and nobody waits for its end."""
    ended, runs, may_end = [], Event(), Event()

    def work(number: int) -> None:
        if not number:
            runs.wait(1)
            raise KeyError
        runs.set()
        ended.append(may_end.wait(1))

    with pytest.raises(KeyError):
        list(concurrently(work, (0, 1), 2))
    assert ended == []
    may_end.set()
