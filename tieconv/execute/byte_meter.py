"""Count the bytes that a write has read, written and compared, for its progress."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tieconv.checkpoint.write_plan.plan import Plan
from tieconv.execute.target import Target

Progress = Callable[[int, int], None]
"""It receives the bytes that are done and all bytes."""


@dataclass
class ByteMeter:
    """Count bytes for ``progress``."""

    total: int
    progress: Progress | None
    done: int = 0

    @classmethod
    def of(cls, plan: Plan, target: Target, progress: Progress | None) -> ByteMeter:
        once = plan.bytes_written + (0 if target.in_place or target.hardlink else plan.bytes_linked)
        return cls(once * (2 if target.verify == "full" else 1), progress)

    def tick(self, count: int) -> None:
        """Count ``count`` more bytes as done."""
        self.done = min(self.done + count, self.total)
        if self.progress is not None:
            self.progress(self.done, self.total)
