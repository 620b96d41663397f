"""Work on many models at once, in the processes of this machine or in any `concurrent.futures.Executor`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from tieconv.checkpoint.value_type import record

if TYPE_CHECKING:
    from concurrent.futures import Executor

K = TypeVar("K")
T = TypeVar("T")
Outcome = Callable[[], T]


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


def each(work: Callable[[K], T], tasks: Sequence[K], workers: Workers, lost: Callable[[K], T]) -> Iterator[T]:
    """Yield ``work(task)`` for each task, in order, as `unordered` does in any order."""
    done: dict[int, Outcome[T]] = {}
    results = _outcomes(work, tasks, workers, lost)
    try:
        for number in range(len(tasks)):
            while number not in done:
                finished, outcome = next(results)
                done[finished] = outcome
            yield done.pop(number)()
    finally:
        results.close()  # type: ignore[attr-defined]  # a generator


def unordered(
    work: Callable[[K], T], tasks: Sequence[K], workers: Workers, lost: Callable[[K], T]
) -> Iterator[tuple[int, T]]:
    """Yield the number of each task and ``work(task)``, in any order. ``work`` must survive pickling.

    Parsing headers is Python code, which threads run one at a time, so processes do the work. If a process dies, the
    tasks that were in flight run again one by one. A task whose process dies again has the result ``lost(task)``.
    Errors of ``work`` are raised here.
    """
    results = _outcomes(work, tasks, workers, lost)
    try:
        yield from ((number, outcome()) for number, outcome in results)
    finally:
        results.close()  # type: ignore[attr-defined]  # a generator


def _outcomes(
    work: Callable[[K], T], tasks: Sequence[K], workers: Workers, lost: Callable[[K], T]
) -> Iterator[tuple[int, Outcome[T]]]:
    """Yield the number of each task, and a function that returns its result or raises its error."""
    if not tasks or workers.stay_here(len(tasks)):
        yield from ((number, partial(work, task)) for number, task in enumerate(tasks))
        return

    from tieconv.gate.worker_pool import pooled  # imports multiprocessing

    yield from pooled(work, tasks, workers, lost)
