"""How long a test waits for an answer that is promised within a time."""

from __future__ import annotations

import sys


def patient(seconds: float) -> float:
    """The promised ``seconds``, and twice as many under coverage, which slows Python several times.

    The promise holds as it stands because each limit of the readers is set in work, not in time, with room to
    spare: the dearest hostile file of the corpus takes a third of a second.
    """
    traced = sys.gettrace() is not None or (hasattr(sys, "monitoring") and sys.monitoring.get_tool(1) is not None)
    return seconds * (2 if traced else 1)
