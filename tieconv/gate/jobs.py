"""Work on many models at once, in the processes of this machine or in any `concurrent.futures.Executor`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Executor

K = TypeVar("K")
T = TypeVar("T")
Outcome = Callable[[], T]


def each(
    work: Callable[[K], T],
    tasks: Sequence[K],
    jobs: int,
    lost: Callable[[K], T],
    *,
    clean: bool = False,
    executor: Executor | None = None,
) -> Iterator[T]:
    """Yield ``work(task)`` for each task, in order, as `unordered` does in any order."""
    done: dict[int, Outcome[T]] = {}
    results = _outcomes(work, tasks, jobs, lost, clean=clean, executor=executor)
    try:
        for number in range(len(tasks)):
            while number not in done:
                finished, outcome = next(results)
                done[finished] = outcome
            yield done.pop(number)()
    finally:
        results.close()  # type: ignore[attr-defined]  # a generator


def unordered(
    work: Callable[[K], T],
    tasks: Sequence[K],
    jobs: int,
    lost: Callable[[K], T],
    *,
    clean: bool = False,
    executor: Executor | None = None,
) -> Iterator[tuple[int, T]]:
    """Yield the number of each task and ``work(task)``, in any order. ``work`` must survive pickling.

    Parsing headers is Python code, which threads run one at a time, so ``jobs`` processes do the work. If a process
    dies, the tasks that were in flight run again one by one. A task whose process dies again has the result
    ``lost(task)``. Errors of ``work`` are raised here. ``clean`` starts the processes without the threads and
    connections of this one, which obstore needs. An ``executor`` of the caller replaces the processes.
    """
    results = _outcomes(work, tasks, jobs, lost, clean=clean, executor=executor)
    try:
        yield from ((number, outcome()) for number, outcome in results)
    finally:
        results.close()  # type: ignore[attr-defined]  # a generator


def _outcomes(
    work: Callable[[K], T],
    tasks: Sequence[K],
    jobs: int,
    lost: Callable[[K], T],
    *,
    clean: bool,
    executor: Executor | None,
) -> Iterator[tuple[int, Outcome[T]]]:
    """Yield the number of each task, and a function that returns its result or raises its error."""
    if executor is None and min(jobs, len(tasks)) <= 1:
        yield from ((number, partial(work, task)) for number, task in enumerate(tasks))
        return
    from tieconv.gate.worker_pool import pooled  # imports multiprocessing

    yield from pooled(work, tasks, jobs, lost, clean=clean, executor=executor)
