"""Print to stdout and stderr, in colour or not, with progress bars. Everything passes the escaper of `tieconv.text`."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import IO, TYPE_CHECKING, Any, TextIO

import click

from tieconv.text import count, shown, size

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn

    from tieconv.api import Fetched


# Print to stdout and stderr. Everything passes the escaper of `tieconv.text`.
#
# A library's log or warning may quote a file. `escaped_libraries` replaces both streams while a command runs. It
# escapes what loggers, warnings and `print` of any library write. tieconv's text goes to the real streams through
# `echo`, `show` and `document`.


MAX_LINES = 200
"""Most lines of a text report on a model. JSON is not shortened."""
_MAX_CHARACTERS = 8000
_LIBRARY_LINES = 40
_LIBRARY_CHARACTERS = 1000
_ANSI_STYLE = r"(\x1b\[[0-9;]*m)"
_CONTINUED = "    "


class Escaped:
    """A text stream for libraries that escapes each line and indents continued lines."""

    def __init__(self, inner: TextIO, most: int | None = None) -> None:
        self.inner = inner
        self._pending = ""
        self._left = most
        self._continued = "" if most is None else _CONTINUED  # Click prints the help to stdout

    def write(self, text: str) -> int:
        """Print the complete lines of ``text``, and keep the rest until its line ends."""
        first, *rest = text.split("\n")
        self._pending += first
        for index, part in enumerate(rest, 1):
            self._line()
            is_last = index == len(rest)
            self._pending = part if is_last and not part else self._continued + part
        return len(text)

    def writelines(self, lines: list[str]) -> None:
        for line in lines:
            self.write(line)

    def finish(self) -> None:
        """Print the kept part of a line."""
        if self._pending:
            self._line()

    def _line(self) -> None:
        line, self._pending = self._pending.rstrip("\r").replace("\t", "    "), ""
        if self._left is not None:
            self._left -= 1
            if self._left < 0:
                return
            if not self._left:
                line = "… further messages of libraries are not shown"
        self.inner.write(f"{shown(line, _LIBRARY_CHARACTERS)}\n")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


@contextmanager
def escaped_libraries() -> Iterator[None]:
    """Escape everything that is printed while the body runs, except by `echo`, `show` and `document`."""
    before = sys.stdout, sys.stderr
    streams = Escaped(sys.stdout), Escaped(sys.stderr, _LIBRARY_LINES)
    sys.stdout, sys.stderr = streams
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
        for stream in streams:
            with suppress(OSError, ValueError):  # the reader closed the pipe
                stream.finish()


def own(*, err: bool = False) -> TextIO:
    """Return the real stream, for a progress bar."""
    stream = sys.stderr if err else sys.stdout
    return stream.inner if isinstance(stream, Escaped) else stream


def echo(text: str = "", *, err: bool = False, nl: bool = True, color: bool | None = None) -> None:
    """Print ``text``, which may hold colours. Escape other control sequences and commands of CI runners."""
    click.echo("\n".join(map(_harmless_line, text.split("\n"))), file=own(err=err), nl=nl, color=color)


def show(text: str, *, err: bool = False) -> None:
    """Print the first `MAX_LINES` lines of a report on one model."""
    echo(shortened(text), err=err)


def shortened(text: str, most: int = MAX_LINES) -> str:
    """Return the first ``most`` lines of a report, and how many lines follow."""
    lines = text.split("\n")
    if len(lines) > most:
        lines = [*lines[: most - 1], f"… and {len(lines) - most + 1:,} more lines (use --json for all)"]
    return "\n".join(line if len(line) <= _MAX_CHARACTERS else f"{line[:_MAX_CHARACTERS]}…" for line in lines)


def document(text: str) -> None:
    """Print a JSON document in ASCII."""
    _asked["document"] = True
    # A CI runner executes `##[` anywhere in a line. Only strings hold a `#`.
    click.echo(text.replace("##", "#\\u0023"), file=own())


def formatted(text: str) -> None:
    """Print a result that its format has escaped: workflow commands, SARIF, JUnit, Markdown."""
    _asked["document"] = True
    click.echo(text, file=own())


def _harmless_line(line: str) -> str:
    parts = re.split(_ANSI_STYLE, line) if "\x1b" in line else [line]
    texts = [shown(part, len(part)) for part in parts[::2]]
    # Two harmless parts may become a command when the colour between them is removed.
    whole = "".join(texts)
    if (escaped := shown(whole, len(line) * 10)) != whole:
        return escaped
    parts[::2] = texts
    return "".join(parts)


# The options of the screen: `-q`, `-v` and `--color`.


AUTO, ALWAYS, NEVER = "auto", "always", "never"

_STYLES: dict[str, dict[str, Any]] = {
    "heading": {"bold": True},
    "good": {"fg": "green"},
    "warning": {"fg": "yellow"},
    "error": {"fg": "red"},
    "quiet": {"dim": True},
}
_asked: dict[str, object] = {}
"""The values of `-q`, `-v` and `--color`, and whether a document was printed. Errors are printed after Click's
context has ended."""


def reset() -> None:
    """Forget the options of an earlier command of this process."""
    _asked.clear()


def set_option(context: click.Context, parameter: click.Parameter, value: object) -> None:
    """Store the value of `-q`, `-v` or `--color`, given before or after the command's name."""
    name = str(parameter.name)
    if context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT:
        _asked[name] = value
    if name == "color":
        asked = _asked.get(name, AUTO)
        context.color = (True if _forced() else None) if asked == AUTO else asked == ALWAYS


def has_document() -> bool:
    """Return whether the command has printed a JSON document."""
    return "document" in _asked


def is_quiet() -> bool:
    """Return whether only results and errors are printed (`-q`)."""
    return bool(_asked.get("quiet"))


def say(text: str) -> None:
    """Print a line to stderr, unless `-q` is given."""
    if not is_quiet():
        echo(text, err=True)


def has_colour(stream: IO[str] | None = None) -> bool:
    """Return whether to print text for ``stream`` (default: stdout) in colour.

    `--color` decides first, then `NO_COLOR`, then `FORCE_COLOR` and `CLICOLOR_FORCE`, then whether ``stream`` is a
    terminal.
    """
    asked = _asked.get("color")
    if asked in (ALWAYS, NEVER):
        return asked == ALWAYS
    if os.environ.get("NO_COLOR"):
        return False
    if _forced():
        return True
    return (stream or sys.stdout).isatty() and os.environ.get("TERM") != "dumb"


def _forced() -> bool:
    """Return whether the environment requests colour in a pipe too."""
    if os.environ.get("NO_COLOR"):
        return False
    return any(os.environ.get(name, "0") not in ("", "0") for name in ("FORCE_COLOR", "CLICOLOR_FORCE"))


def painter(stream: IO[str] | None = None) -> Callable[[str, str], str]:
    """Return ``paint(text, style)`` for ``stream``, which returns the text unchanged without colour."""
    colour = has_colour(stream)
    return lambda text, style: click.style(text, **_STYLES[style]) if colour else text


def paint(text: str, style: str) -> str:
    """Return ``text`` for stdout in a style: ``heading``, ``good``, ``warning``, ``error`` or ``quiet``."""
    return painter()(text, style)


def width(stream: IO[str] | None = None) -> int | None:
    """Return the columns of the terminal, or ``None`` if the stream is not a terminal."""
    if not (stream or sys.stdout).isatty():
        return None
    import shutil

    return max(shutil.get_terminal_size().columns, 40)


@contextmanager
def timed(step: str) -> Iterator[None]:
    """Print the time of ``step`` and the peak memory so far, if `-v` is given."""
    start = time.monotonic()
    yield
    if bool(_asked.get("verbose")):
        import resource

        unit = 1 if sys.platform == "darwin" else 1024  # macOS counts bytes, Linux KiB
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
        echo(f"{step}: {time.monotonic() - start:.2f} s, peak memory {size(peak)}", err=True)


# Progress bars on a terminal: bytes, rate and time left. rich is imported only after `PATIENCE` seconds.


PATIENCE = 0.5
"""Seconds of work before a bar appears."""
_REFRESH, SECOND = 0.1, 1.0


def byte_progress(label: str) -> _Bar:
    """Return the block of a bar of bytes: ``bar(bytes done, total bytes)``."""
    return _Bar(label, "BarColumn", "DownloadColumn", "TransferSpeedColumn", "TimeRemainingColumn")


def count_progress(label: str) -> _Bar:
    """Return the block of a bar of items: ``bar(items done, total items)``."""
    return _Bar(label, "BarColumn", "MofNCompleteColumn", "TimeRemainingColumn")


@contextmanager
def stage_progress(label: str) -> Iterator[Callable[[str, int, int], None]]:
    """Yield ``stage(name, done, total)``, which shows the name of the current step at once, and its time each second.

    Without a ``total`` (0), the time left is not shown. A signal draws: a thread would be alive in a fork. Without a
    terminal, `-v` prints a line for each step.
    """
    with _Bar(label, "BarColumn", "TimeElapsedColumn", "TimeRemainingColumn") as bar:

        def stage(name: str, done: int, total: int) -> None:
            before, bar.label = bar.label, f"{label}: {name}"
            if bar.label != before and not bar.shows and bool(_asked.get("verbose")):
                echo(bar.label, err=True)
            bar.started, bar.drawn = float("-inf"), 0.0
            bar(done, total)

        main = threading.current_thread() is threading.main_thread()
        if not bar.shows or not main or not hasattr(signal, "setitimer"):
            yield stage
            return
        before = signal.signal(signal.SIGALRM, lambda *_: bar.draw())
        signal.siginterrupt(signal.SIGALRM, False)
        signal.setitimer(signal.ITIMER_REAL, SECOND, SECOND)
        try:
            yield stage
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


class _Bar:
    """A bar that appears after `PATIENCE` seconds, until its block ends. It draws nothing unless it ``shows``."""

    def __init__(self, label: str, *columns: str) -> None:
        self.label, self._columns, self.shows = label, columns, sys.stderr.isatty() and not is_quiet()
        self.started, self.drawn, self._drawing = time.monotonic(), 0.0, False
        self._progress: Progress | None = None

    def __call__(self, done: int, total: int) -> None:
        """Draw ``done`` of ``total``, at most ten times a second."""
        now = time.monotonic()
        early = now - self.started < PATIENCE or (now - self.drawn < _REFRESH and done < total)
        if early or not self.shows:
            return
        self.drawn = now
        if self._progress is None:
            from rich import progress
            from rich.console import Console

            columns: list[ProgressColumn] = [progress.TextColumn("{task.description}", markup=False)]
            columns += [getattr(progress, name)() for name in self._columns]
            if "TimeRemainingColumn" in self._columns:
                columns.append(progress.TextColumn("{task.fields[left]}", markup=False))
            # No refresh thread: a fork or a signal during a draw would leave its lock held.
            console = Console(file=own(err=True))
            bar = progress.Progress(*columns, console=console, auto_refresh=False, transient=True)
            bar.start()
            self._progress = bar
        tasks = self._progress.tasks
        if not tasks or tasks[0].total != (total or None):
            self._progress.add_task(self.label, total=total or None, left="left" if total else "")
            for task in tasks:
                self._progress.remove_task(task.id)
        self._progress.update(self._progress.task_ids[0], description=self.label, completed=done)
        self.draw()

    def draw(self) -> None:
        """Draw the bar again, unless a draw was interrupted to do so."""
        if self._progress is not None and not self._drawing:
            self._drawing = True
            with suppress(RuntimeError):  # a write to the terminal was interrupted
                self._progress.refresh()
            self._drawing = False

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()


def fetched_line(fetched: Fetched) -> str:
    """Return a line such as ``fetched 128 kB in 6 requests``."""
    return f"fetched {size(fetched.bytes)} in {count(fetched.requests, 'request')}"


def headers_bar(model: str) -> AbstractContextManager[Callable[[int, int], None] | None]:
    """Return the block of a bar of the headers that are fetched, for a remote model and on a terminal."""
    from tieconv.api import is_remote  # not needed to list the commands

    return count_progress("headers") if is_remote(model) and sys.stderr.isatty() else nullcontext()
