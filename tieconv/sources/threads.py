"""Threads that wait for the network, and need not be waited for once the user has had enough."""

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
    """A pool that is left at once on an error or an interrupt: what has not begun is not begun."""
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
    """The result of ``work``, done in a thread: one that waits for threads of its own heeds no interrupt meanwhile.

    Raises what ``late`` makes where it takes more than ``timeout`` seconds; what comes of it later is discarded.
    """
    future: Future[T] = Future()
    context = contextvars.copy_context()

    def run() -> None:
        try:
            future.set_result(context.run(work))
        except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
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
    """Whether such a thread was left behind."""
    return any(thread.name.startswith(_PREFIX) for thread in threading.enumerate())
