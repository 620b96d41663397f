"""How much work an answer may take, and when a test gives up waiting: no test fails for a slow or busy machine."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

HANGS = 600.0
"""Wall seconds after which a test ends what would never end. No promise is held to this number."""
ALL_EXAMPLES = "TIECONV_EXAMPLES"
"""Set to ``all``, as `.ci/run slow` does, hypothesis tries every property on all examples that its test asks for."""
MARGIN = 10
"""How many times slower a machine may be than the one on which a promise was measured, load and tracing included."""


def examples(count: int) -> int:
    """Return how many examples of a property hypothesis tries: ``count`` in the slow suite, a fifth in the fast one."""
    return count if os.environ.get(ALL_EXAMPLES) == "all" else max(25, count // 5)


@contextmanager
def prompt(seconds: float) -> Iterator[None]:
    """Assert that the body takes less than ``seconds`` of CPU time, times MARGIN, and end it where it hangs.

    A loaded machine makes an answer late without making it dear, so the promise is held to the work. What blocks (a
    FIFO, a device) does no work: an alarm ends it. Coverage does not see the body, as tracing makes an interpreter of
    opcodes ten times slower.
    """
    alarms = hasattr(signal, "setitimer")  # not in Pyodide
    if alarms:
        before = signal.signal(signal.SIGALRM, _hangs)
        signal.setitimer(signal.ITIMER_REAL, HANGS)
    try:
        with _untraced():
            started = time.process_time()
            yield
            worked = time.process_time() - started
    finally:
        if alarms:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
    assert worked < patient(seconds), f"took {worked:.2f} s of CPU time"


def received(leader: int) -> bytes:
    """What a terminal received until its other side was closed. One read returns a part: a slow machine draws more."""
    data = bytearray()
    with suppress(OSError):  # Linux ends a terminal whose other side is closed with EIO
        while chunk := os.read(leader, 1 << 16):
            data += chunk
    os.close(leader)
    return bytes(data)


def _hangs(_number: int, _frame: FrameType | None) -> NoReturn:
    raise AssertionError(f"no answer after {HANGS:.0f} s")


@contextmanager
def _untraced() -> Iterator[None]:
    tracer = sys.gettrace()
    sys.settrace(None)
    try:
        yield
    finally:
        sys.settrace(tracer)


def patient(seconds: float) -> float:
    """Return the bound for a promise of ``seconds`` of CPU time: what is quadratic, or allocates, takes far more.

    The promise holds as it stands because each limit of the readers is set in work, not in time, with room to
    spare: the dearest hostile file of the corpus takes a third of a second.
    """
    return MARGIN * seconds
