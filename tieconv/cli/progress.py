"""Progress bars on a terminal: bytes, rate and time left. rich is imported only after `PATIENCE` seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tieconv.api import is_remote
from tieconv.cli.screen import is_quiet
from tieconv.cli.streams import own
from tieconv.text import count, size

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn

if TYPE_CHECKING:
    from tieconv.api import Fetched

Tick = Callable[[int, int], None]
"""``tick(done, total)``."""

PATIENCE = 0.5
"""Seconds of work before a bar appears."""
_REFRESH = 0.1


@contextmanager
def byte_progress(label: str) -> Iterator[Tick]:
    """Yield ``tick(bytes done, total bytes)``."""
    with _bar(label, _byte_columns) as bar:
        yield bar.update


@contextmanager
def count_progress(label: str) -> Iterator[Tick]:
    """Yield ``tick(items done, total items)``."""
    with _bar(label, _count_columns) as bar:
        yield bar.update


@contextmanager
def rate_progress(label: str) -> Iterator[Callable[[str, int, int], None]]:
    """Yield ``tick(rates, items done, total items)``, which shows the rates before the bar."""
    with _bar(label, _count_columns) as bar:

        def tick(rates: str, done: int, total: int) -> None:
            bar.rename(f"{label}: {rates}")
            bar.update(done, total)

        yield tick


@contextmanager
def stage_progress(label: str) -> Iterator[Callable[[str, int, int], None]]:
    """Yield ``stage(name, done, total)``, which shows the name of the current step."""
    with _bar(label, _stage_columns) as bar:

        def stage(name: str, done: int, total: int) -> None:
            bar.show(f"{label}: {name}")
            bar.update(done, total)

        yield stage


class _Bar:
    """A bar that appears after `PATIENCE` seconds, or at once if it names a stage."""

    def __init__(self, label: str, columns: Callable[[], list[ProgressColumn]]) -> None:
        self._label = label
        self._columns = columns
        self._started = time.monotonic()
        self._drawn = 0.0
        self._progress: Progress | None = None

    def update(self, done: int, total: int) -> None:
        """Draw ``done`` of ``total``, at most ten times a second."""
        now = time.monotonic()
        finished = done >= total
        if now - self._started < PATIENCE or (now - self._drawn < _REFRESH and not finished):
            return
        self._drawn = now
        self._draw(done, max(total, 1))

    def show(self, label: str) -> None:
        """Change the label and draw at once."""
        self._label = label
        self._started = float("-inf")
        self._drawn = 0.0

    def rename(self, label: str) -> None:
        """Change the label for the next time that the bar is drawn."""
        self._label = label

    def _draw(self, done: int, total: int) -> None:
        if self._progress is None:
            self._progress = _rich(self._columns())
            self._progress.start()
            self._progress.add_task(self._label, total=total)
        task = self._progress.task_ids[0]
        self._progress.update(task, description=self._label, completed=done, total=total)
        self._progress.refresh()

    def stop(self) -> None:
        """Remove the bar from the screen."""
        if self._progress is not None:
            self._progress.stop()


class _Hidden(_Bar):
    """A bar that draws nothing, because stderr is not a terminal or `-q` is given."""

    def _draw(self, done: int, total: int) -> None:
        return


@contextmanager
def _bar(label: str, columns: Callable[[], list[ProgressColumn]]) -> Iterator[_Bar]:
    shows = sys.stderr.isatty() and not is_quiet()
    bar = (_Bar if shows else _Hidden)(label, columns)
    try:
        yield bar
    finally:
        bar.stop()


def _rich(columns: list[ProgressColumn]) -> Progress:
    from rich.console import Console
    from rich.progress import Progress

    # No refresh thread: a fork or a signal during a draw would leave its lock held.
    return Progress(*columns, console=Console(file=own(err=True)), auto_refresh=False, transient=True)


def _text() -> ProgressColumn:
    from rich.progress import TextColumn

    return TextColumn("{task.description}", markup=False)


def _byte_columns() -> list[ProgressColumn]:
    from rich.progress import BarColumn, DownloadColumn, TimeRemainingColumn, TransferSpeedColumn

    return [_text(), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn(), _left()]


def _count_columns() -> list[ProgressColumn]:
    from rich.progress import BarColumn, MofNCompleteColumn, TimeRemainingColumn

    return [_text(), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), _left()]


def _stage_columns() -> list[ProgressColumn]:
    from rich.progress import BarColumn, TimeElapsedColumn

    return [_text(), BarColumn(), TimeElapsedColumn()]


def _left() -> ProgressColumn:
    from rich.progress import TextColumn

    return TextColumn("left", markup=False)


def fetched_line(fetched: Fetched) -> str:
    """Return a line such as ``fetched 128 kB in 6 requests``."""
    return f"fetched {size(fetched.bytes)} in {count(fetched.requests, 'request')}"


@contextmanager
def headers_bar(model: str) -> Iterator[Callable[[int, int], None] | None]:
    """Show a progress bar of the headers that are fetched, for a remote model and on a terminal."""
    if not is_remote(model) or not sys.stderr.isatty():
        yield None
        return
    from tieconv.cli.progress import count_progress  # on a terminal, for a remote model

    with count_progress("headers") as tick:
        yield tick
