"""How long a test waits for an answer that is promised within a time."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

HANGS = 30.0
"""Wall seconds after which an answer that took little work has waited for something."""


@contextmanager
def prompt(seconds: float) -> Iterator[None]:
    """The body takes less than ``seconds`` of this process's CPU time, and does not hang.

    A loaded machine makes an answer late without making it dear, so the promise is held to the work; what blocks
    (a FIFO, a device) works nothing, and is caught by the clock. Coverage does not see the body: tracing makes an
    interpreter of opcodes ten times slower, and the promise is about the program as it runs.
    """
    with _untraced():
        worked, started = time.process_time(), time.perf_counter()
        yield
        worked, waited = time.process_time() - worked, time.perf_counter() - started
    assert worked < patient(seconds), f"took {worked:.2f} s of CPU time"
    assert waited < HANGS, f"answered after {waited:.1f} s"


@contextmanager
def _untraced() -> Iterator[None]:
    tracer = sys.gettrace()
    sys.settrace(None)
    try:
        yield
    finally:
        sys.settrace(tracer)


def patient(seconds: float) -> float:
    """The promised ``seconds``, and twice as many where coverage is on, which slows what it is told to count.

    The promise holds as it stands because each limit of the readers is set in work, not in time, with room to
    spare: the dearest hostile file of the corpus takes a third of a second.
    """
    traced = sys.gettrace() is not None or (hasattr(sys, "monitoring") and sys.monitoring.get_tool(1) is not None)
    return seconds * (2 if traced else 1)
