"""What does the work on many models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tieconv.checkpoint.value_type import record

if TYPE_CHECKING:
    from concurrent.futures import Executor


@record
class Workers:
    """What does the work: ``jobs`` processes, or as many tasks at once of an ``executor`` of the caller.

    ``clean`` starts the processes without the threads and connections of this one, which obstore needs. ``apart`` is
    for long tasks: each runs in a clean process, and each result arrives when it is ready.
    """

    jobs: int = 1
    executor: Executor | None = None
    clean: bool = False
    apart: bool = False

    def stay_here(self, tasks: int) -> bool:
        """Return whether this process does the work."""
        return self.executor is None and not self.apart and min(self.jobs, tasks) <= 1
