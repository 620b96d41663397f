"""Threads for network requests, which an interrupt leaves behind without waiting."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")

_PREFIX = "tieconv-network"


@contextmanager
def workers(number: int) -> Iterator[ThreadPoolExecutor]:
    """Yield a thread pool. On an error or an interrupt, cancel pending work and do not wait."""
    pool = ThreadPoolExecutor(number, thread_name_prefix=_PREFIX)
    try:
        yield pool
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()


def interruptible(
    work: Callable[[], T],
    timeout: float | None = None,
    late: Callable[[], Exception] = TimeoutError,
    discard: Callable[[T], object] = id,
) -> T:
    """Run ``work`` in a thread and return its result, so that an interrupt works meanwhile.

    Raises the result of ``late`` after ``timeout`` seconds. A later result of ``work`` goes to ``discard``.
    """
    future: Future[T] = Future()
    context = contextvars.copy_context()

    def run() -> None:
        try:
            future.set_result(context.run(work))
        except BaseException as error:  # noqa: BLE001 - raised again in the waiting thread
            future.set_exception(error)

    threading.Thread(target=run, name=_PREFIX, daemon=True).start()
    try:
        return future.result(timeout)
    except TimeoutError:
        if future.done():
            raise
        future.add_done_callback(lambda done: done.exception() or discard(done.result()))
        raise late() from None


def anything_waits() -> bool:
    """Return whether a network thread is still running."""
    return any(thread.name.startswith(_PREFIX) for thread in threading.enumerate())
