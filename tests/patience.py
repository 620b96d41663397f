"""How long a test waits for an answer that is promised within a time."""

from __future__ import annotations

import sys


def patient(seconds: float) -> float:
    """The promised ``seconds`` with room for a busy machine, and for coverage, which slows Python several times.

    A test of time is there to see a hang or a wrong order of growth, not the load of the machine.
    """
    traced = sys.gettrace() is not None or (hasattr(sys, "monitoring") and sys.monitoring.get_tool(1) is not None)
    return seconds * (8 if traced else 3)
