"""Check many models at once, and return the results in the order of the arguments."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from tieconv.errors import TieconvError

T = TypeVar("T")


def each(work: Callable[[str], T], paths: Sequence[str], jobs: int) -> Iterator[T]:
    """Yield ``work(path)`` for each path, in order, from at most ``jobs`` processes. ``work`` must survive pickling.

    It uses processes because parsing headers is Python code, which threads run one at a time.
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
        except BaseException:  # the caller stopped: do not wait for models that are being read
            for process in mine:
                process.terminate()
            raise
    except BrokenProcessPool:
        raise TieconvError("a worker process was killed", "if memory is short, use --jobs 1", "jobs.killed") from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _answer_signals() -> None:
    """Let an interrupt end a worker without a traceback; the parent reports it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
