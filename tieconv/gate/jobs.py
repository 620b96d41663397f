"""Many models at once, told in the order in which they were asked for."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from tieconv.errors import TieconvError

T = TypeVar("T")


def each(work: Callable[[str], T], paths: Sequence[str], jobs: int) -> Iterator[T]:
    """``work(path)`` for each path, in order, by at most ``jobs`` processes; ``work`` must survive pickling.

    Processes, because most of the time goes into parsing headers in Python, which threads do one at a time.
    """
    jobs = min(jobs, len(paths))
    if jobs <= 1:
        yield from map(work, paths)
        return
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool

    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(jobs, initializer=_answer_signals)
    try:
        done = pool.map(work, paths)
        mine = set(multiprocessing.active_children()) - others
        try:
            yield from done
        except BaseException:  # nobody waits for a model that is being read
            for process in mine:
                process.terminate()
            raise
    except BrokenProcessPool:
        raise TieconvError(
            "a process that checked models was killed", "is memory short? try --jobs 1", "jobs.killed"
        ) from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _answer_signals() -> None:
    """An interrupt ends a worker without a traceback; the parent says what happened."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
