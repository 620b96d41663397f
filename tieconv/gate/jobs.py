"""Work on many models at once, and return the results in the order of the models."""

from __future__ import annotations

import os
import signal
from collections import deque
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

_MOST_AHEAD = 8
"""The most paths that a process has at a time."""
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
    crew: _Crew[T] = _Crew(_context(clean), work, lost, list(enumerate(paths))[::-1], jobs)
    try:
        crew.start()
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
    """Worker processes. Each works on its paths in order, so it is known whose path dies with it.

    ``todo`` are numbered paths, the next at the end. ``busy`` maps the connection of each process to it and its paths.
    ``done`` maps the number of a path to its result.
    """

    context: BaseContext
    work: Callable[[str], T]
    lost: Callable[[str], T]
    todo: list[tuple[int, str]]
    jobs: int
    busy: dict[Connection, tuple[BaseProcess, deque[tuple[int, str]]]] = field(default_factory=dict)
    done: dict[int, _Returned[T] | _Raised] = field(default_factory=dict)

    def start(self) -> None:
        """Start processes, each with its first paths."""
        for _ in range(self.jobs):
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
        self.busy[ours] = process, deque()
        self._give(ours)

    def _give(self, connection: Connection) -> None:
        """Send a process the next paths, or end it if it has none."""
        process, paths = self.busy[connection]
        with suppress(OSError):  # it died; `collect` reads the end of the connection
            while self.todo and len(paths) < self._ahead():
                paths.append(self.todo.pop())
                connection.send(paths[-1][1])
            if not paths:
                connection.send(None)  # a later process may hold this connection too, so closing it ends nothing
        if not paths:
            del self.busy[connection]
            process.join()
            connection.close()

    def _ahead(self) -> int:
        """Return how many paths a process may have: several, so that it never waits, but one near the end."""
        return min(_MOST_AHEAD, 1 + len(self.todo) // (4 * self.jobs))

    def collect(self) -> None:
        """Wait until a process has a result or is dead, and give it or a new one the next paths."""
        from multiprocessing.connection import wait

        ready: list[Any] = list(wait(list(self.busy)))
        for connection in ready:
            process, paths = self.busy[connection]
            number, path = paths.popleft()
            try:
                self.done[number] = connection.recv()
            except (EOFError, ConnectionError):
                self.done[number] = _Returned(self.lost(path))
                self.todo += reversed(paths)
                del self.busy[connection]
                connection.close()
                process.join()
                self._start_one()
            else:
                self._give(connection)

    def stop(self) -> None:
        """End the processes without waiting for the models that they read."""
        for connection, (process, _) in self.busy.items():
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
