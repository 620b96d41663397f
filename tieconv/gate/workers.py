"""Work on many models at once, in the processes of this machine or in any `concurrent.futures.Executor`."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import import_module, util
from threading import Thread
from typing import TYPE_CHECKING, Generic, NoReturn, TypeVar

from tieconv.checkpoint.value_type import record

if TYPE_CHECKING:
    from concurrent.futures import Executor, Future
    from multiprocessing.context import BaseContext

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
        """Return whether this process does the work. In a browser Python starts no other one."""
        alone = util.find_spec("_multiprocessing") is None or (not self.apart and min(self.jobs, tasks) <= 1)
        return self.executor is None and alone


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
        next(results, None)  # it ends here, so its processes are idle and need no signal
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
    pool = _Pool(workers.executor, min(workers.jobs, len(tasks)), workers.clean or workers.apart)
    idle = False
    try:
        suspects: list[int] = []
        for numbers, outcomes in _finished(pool, work, tasks, workers):
            if outcomes is None:
                suspects += numbers
            else:
                yield from zip(numbers, outcomes, strict=True)
        for number in sorted(suspects):
            [(_, outcomes)] = _finished(pool, work, [tasks[number]], Workers())
            yield number, _Returned(lost(tasks[number])) if outcomes is None else outcomes[0]
        idle = True
    finally:
        pool.stop(idle)


# Work on batches of tasks in a pool, and work again on what a dead worker lost. A run without it imports no pool.


_LARGEST_BATCH = 8
"""The most tasks that a worker gets at once."""
_IN_FLIGHT = 2
"""Batches for each worker: one that runs, and one that waits."""
_LONGEST_DIRECTORY = 60
"""Bytes that the path of the temporary directory may have, below which multiprocessing adds about 35."""
_GRACE = 5.0
"""Seconds that the processes get to remove their temporary files after SIGTERM."""
_PRELOADED = ["tieconv.opened", "tieconv.checks.registry", "tieconv.sources.ranged"]


@record
class _Returned(Generic[T]):
    result: T

    def __call__(self) -> T:
        return self.result


@record
class _Raised:
    error: Exception

    def __call__(self) -> NoReturn:
        raise self.error


_Outcomes = list[_Returned[T] | _Raised]


def _finished(
    pool: _Pool, work: Callable[[K], T], tasks: Sequence[K], workers: Workers
) -> Iterator[tuple[range, _Outcomes[T] | None]]:
    """Yield the numbers of each batch with its outcomes, or with None if its process died. Keeps a window in flight."""
    from concurrent.futures import FIRST_COMPLETED, wait
    from concurrent.futures.process import BrokenProcessPool

    largest, window = (1, workers.jobs) if workers.apart else (_LARGEST_BATCH, _IN_FLIGHT * workers.jobs)
    pending: dict[Future[_Outcomes[T]], range] = {}
    following = 0
    while following < len(tasks) or pending:
        while following < len(tasks) and len(pending) < window:
            left = len(tasks) - following
            numbers = range(following, following + min(largest, 1 + left // (8 * workers.jobs)))
            following = numbers.stop
            try:
                future = pool.executor.submit(_work_on, work, [tasks[number] for number in numbers])
            except BrokenProcessPool:  # it broke since the last wait, so nothing of this batch ran
                if pool.is_shared:
                    raise
                following = numbers.start
                break
            pending[future] = numbers
        broken = not pending
        for future in wait(pending, return_when=FIRST_COMPLETED).done:
            numbers, error = pending.pop(future), future.exception()
            broken |= isinstance(error, BrokenProcessPool)
            yield numbers, None if error else future.result()
        if broken:
            yield from ((numbers, None) for numbers in pending.values())
            pending.clear()
            pool.renew()


def _work_on(work: Callable[[K], T], tasks: list[K]) -> _Outcomes[T]:
    return [_attempt(work, task) for task in tasks]


def _attempt(work: Callable[[K], T], task: K) -> _Returned[T] | _Raised:
    try:
        return _Returned(work(task))
    except Exception as error:  # noqa: BLE001 - raised again in the process that waits
        return _Raised(error)


class _Pool:
    """The executor of the caller, or processes that are started again when one has died."""

    def __init__(self, executor: Executor | None, jobs: int, clean: bool) -> None:
        self.is_shared, self._jobs, self._clean = executor is not None, jobs, clean
        self.executor = executor or self._start()

    def _start(self) -> Executor:
        from concurrent.futures.process import ProcessPoolExecutor

        return ProcessPoolExecutor(self._jobs, _context(self._clean), _prepare, (dict(os.environ),))

    def renew(self) -> None:
        """Start the processes again. An executor of the caller stays as it is."""
        if not self.is_shared:
            self.stop()
            self.executor = self._start()

    def stop(self, idle: bool = False) -> None:
        """End the processes without waiting for the models that they read. Processes that are ``idle`` end cleanly."""
        from concurrent.futures.process import ProcessPoolExecutor
        from multiprocessing.connection import wait

        if not isinstance(self.executor, ProcessPoolExecutor) or self.is_shared:
            return
        # Python 3.14 has `terminate_workers` and `kill_workers`; older releases have no public way.
        processes = [] if idle else list((self.executor._processes or {}).values())
        for process in processes:
            process.terminate()
        # SIGTERM just before a process waits for the lock of a dead one is handled too late: never.
        ends = time.monotonic() + _GRACE
        for process in processes:
            wait([process.sentinel], max(ends - time.monotonic(), 0))
            process.kill()
        self.executor.shutdown(cancel_futures=True)


def _context(clean: bool) -> BaseContext:
    import multiprocessing

    if not clean:
        for name in _PRELOADED:  # once here, and not once in each process
            import_module(name)
        return multiprocessing.get_context()
    from multiprocessing import resource_tracker

    before = os.environ.get("PYTHONWARNINGS")
    os.environ["PYTHONWARNINGS"] = ",".join(filter(None, (before, "ignore:resource_tracker:UserWarning")))
    try:
        resource_tracker.ensure_running()
    finally:
        del os.environ["PYTHONWARNINGS"]
        os.environ.update({} if before is None else {"PYTHONWARNINGS": before})
    _choose_socket_directory()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    return context


def _choose_socket_directory() -> None:
    """Keep multiprocessing's sockets in /tmp, as Python 3.14 does, if the temporary directory's path is too long.

    The address of a Unix socket has at most 108 bytes. The first call of ``get_temp_dir`` decides for the process.
    """
    import tempfile
    from multiprocessing import util

    if len(os.fsencode(tempfile.gettempdir())) <= _LONGEST_DIRECTORY:
        return
    before, tempfile.tempdir = tempfile.tempdir, "/tmp"  # noqa: S108 - mkdtemp makes a private directory there
    try:
        util.get_temp_dir()
    finally:
        tempfile.tempdir = before


def _prepare(environment: dict[str, str]) -> None:
    """Give a process the environment of now: multiprocessing's server keeps an old one.

    An interrupt ends it unless tieconv itself ignores interrupts, and so does the end of the process that started it.
    """
    from tieconv.sources.temporary import PARENT_WATCH

    if environment != os.environ:
        os.environ.clear()
        os.environ.update(environment)
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:  # nohup, and `&` in a script: Ctrl-C is meant for others
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    Thread(target=_end_with_parent, name=PARENT_WATCH, daemon=True).start()


def _end_with_parent() -> None:
    """End this process when its parent has ended, for example by SIGKILL. Otherwise it would wait for ever."""
    from multiprocessing import parent_process

    from tieconv.sources.temporary import remove_temporary

    parent = parent_process()
    if parent is not None:
        parent.join()
        remove_temporary(every_thread=True)
        os._exit(1)
