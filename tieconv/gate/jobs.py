"""Work on many models at once, and return the results in the order of the models."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from tieconv.checkpoint.value_type import record

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.context import BaseContext
    from multiprocessing.process import BaseProcess

T = TypeVar("T")

_PRELOADED = ["tieconv.opened", "tieconv.checks.registry", "tieconv.sources.ranged.ranged_files"]


def each(
    work: Callable[[str], T], paths: Sequence[str], jobs: int, lost: Callable[[str], T], *, clean: bool = False
) -> Iterator[T]:
    """Yield ``work(path)`` for each path, in order, from at most ``jobs`` processes. ``work`` must survive pickling.

    It uses processes because parsing headers is Python code, which threads run one at a time. If a process dies, its
    path has the result ``lost(path)``, and a new process takes the next path. Errors of ``work`` are raised here.
    ``clean`` starts the processes without the threads and connections of this one, which obstore needs.
    """
    jobs = min(jobs, len(paths))
    if jobs <= 1:
        yield from map(work, paths)
        return
    crew: _Crew[T] = _Crew(_context(clean), work, lost, list(enumerate(paths))[::-1])
    try:
        crew.start(jobs)
        for number in range(len(paths)):
            while number not in crew.done:
                crew.collect()
            outcome = crew.done.pop(number)
            if isinstance(outcome, _Raised):
                raise outcome.error
            yield outcome.result
    finally:
        crew.stop()


def _context(clean: bool) -> BaseContext:
    import multiprocessing

    if not clean:
        return multiprocessing.get_context()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    return context


@record
class _Returned(Generic[T]):
    """What ``work`` returned."""

    result: T


@record
class _Raised:
    """What ``work`` raised."""

    error: Exception


@dataclass
class _Crew(Generic[T]):
    """Worker processes. Each has at most one path at a time, so that it is known whose path dies with it.

    ``todo`` are numbered paths, the next at the end. ``busy`` maps the connection of each process to it and its path.
    ``done`` maps the number of a path to its result.
    """

    context: BaseContext
    work: Callable[[str], T]
    lost: Callable[[str], T]
    todo: list[tuple[int, str]]
    busy: dict[Connection, tuple[BaseProcess, int, str]] = field(default_factory=dict)
    done: dict[int, _Returned[T] | _Raised] = field(default_factory=dict)

    def start(self, jobs: int) -> None:
        """Start processes, each with a path."""
        for _ in range(jobs):
            self._start_one()

    def _start_one(self) -> None:
        if not self.todo:
            return
        ours, theirs = self.context.Pipe()
        process: BaseProcess = self.context.Process(  # type: ignore[attr-defined]  # of each context
            target=_serve, args=(theirs, self.work, dict(os.environ)), daemon=True
        )
        process.start()
        theirs.close()
        self._give(ours, process)

    def _give(self, connection: Connection, process: BaseProcess) -> None:
        """Send a process the next path, or end it if none is left."""
        if not self.todo:
            with suppress(OSError):
                connection.send(None)  # a later process may hold this connection too, so closing it ends nothing
            process.join()
            connection.close()
            return
        number, path = self.todo.pop()
        self.busy[connection] = process, number, path
        with suppress(OSError):  # it died; `collect` reads the end of the connection
            connection.send(path)

    def collect(self) -> None:
        """Wait until a process has a result or is dead, and give it or a new one the next path."""
        from multiprocessing.connection import wait

        ready: list[Any] = list(wait(list(self.busy)))
        for connection in ready:
            process, number, path = self.busy.pop(connection)
            try:
                self.done[number] = connection.recv()
            except (EOFError, ConnectionError):
                self.done[number] = _Returned(self.lost(path))
                connection.close()
                process.join()
                self._start_one()
            else:
                self._give(connection, process)

    def stop(self) -> None:
        """End the processes without waiting for the models that they read."""
        for connection, (process, _, _) in self.busy.items():
            process.terminate()
            connection.close()
            process.join()
        self.busy.clear()


def _serve(connection: Connection, work: Callable[[str], T], environment: dict[str, str]) -> None:
    """Work on the paths that arrive, until the connection ends. An interrupt ends it without a traceback.

    multiprocessing's server of processes keeps an old environment, so each process gets the present one.
    """
    if environment != os.environ:
        os.environ.clear()
        os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    while True:
        try:
            path = connection.recv()
        except EOFError:
            return
        if path is None:
            return
        try:
            outcome: _Returned[T] | _Raised = _Returned(work(path))
        except Exception as error:  # noqa: BLE001 - raised again in the process that waits
            outcome = _Raised(error)
        try:
            connection.send(outcome)
        except OSError:
            return
