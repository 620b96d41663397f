"""Print to stdout and stderr. Everything passes the escaper of `tieconv.text`.

A library's log or warning may quote a file. `escaped_libraries` replaces both streams while a command runs. It
escapes what loggers, warnings and `print` of any library write. tieconv's text goes to the real streams through
`echo`, `show` and `document`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

import click

from tieconv.text import shown

MAX_LINES = 200
"""Most lines of a text report on a model. JSON is not shortened."""
_MAX_CHARACTERS = 8000
_LIBRARY_LINES = 40
_LIBRARY_CHARACTERS = 1000
_STYLE = r"(\x1b\[[0-9;]*m)"
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

    def flush(self) -> None:
        self.inner.flush()

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
    click.echo(_harmless(text), file=own(err=err), nl=nl, color=color)


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
    # A CI runner executes `##[` anywhere in a line. Only strings hold a `#`.
    click.echo(text.replace("##", "#\\u0023"), file=own())


def formatted(text: str) -> None:
    """Print a result that its format has escaped: workflow commands, SARIF, JUnit, Markdown."""
    click.echo(text, file=own())


def _harmless(text: str) -> str:
    return "\n".join(map(_harmless_line, text.split("\n")))


def _harmless_line(line: str) -> str:
    parts = re.split(_STYLE, line) if "\x1b" in line else [line]
    texts = [shown(part, len(part)) for part in parts[::2]]
    # Two harmless parts may become a command when the colour between them is removed.
    if shown("".join(texts), len(line) * 10) != "".join(texts):
        return shown("".join(texts), len(line) * 10)
    parts[::2] = texts
    return "".join(parts)
