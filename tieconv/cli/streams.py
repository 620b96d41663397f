"""Print to stdout and stderr: the only way out for tieconv's own text, and an escaper for what libraries print.

A library's log or warning may quote a file. `escaped_libraries` stands in for both streams while a command runs, so
that loggers, warnings and `print` of any library pass `tieconv.text` line by line. tieconv's own text goes to the
streams beneath through `echo`, `show` and `document`.
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
"""Lines of one report on a model; JSON is never cut."""
_MAX_CHARACTERS = 8000
_LIBRARY_LINES = 40
_LIBRARY_CHARACTERS = 1000
_STYLE = r"(\x1b\[[0-9;]*m)"
_CONTINUED = "    "


class Escaped:
    """A text stream for libraries: each line is escaped, and a line break inside a message is indented."""

    def __init__(self, inner: TextIO, most: int | None = None) -> None:
        self.inner = inner
        self._pending = ""
        self._left = most
        self._continued = "" if most is None else _CONTINUED  # Click prints the help to stdout

    def write(self, text: str) -> int:
        """Print the lines that ``text`` ends; the rest waits for its end."""
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
        """Print what is left of a line."""
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
                line = "further messages of libraries are left out"
        self.inner.write(f"{shown(line, _LIBRARY_CHARACTERS)}\n")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


@contextmanager
def escaped_libraries() -> Iterator[None]:
    """Escape what anything but `echo`, `show` and `document` prints while the body runs."""
    before = sys.stdout, sys.stderr
    streams = Escaped(sys.stdout), Escaped(sys.stderr, _LIBRARY_LINES)
    sys.stdout, sys.stderr = streams
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
        for stream in streams:
            with suppress(OSError, ValueError):  # its reader went away
                stream.finish()


def own(*, err: bool = False) -> TextIO:
    """The stream beneath the escaper, for a progress bar."""
    stream = sys.stderr if err else sys.stdout
    return stream.inner if isinstance(stream, Escaped) else stream


def echo(text: str = "", *, err: bool = False, nl: bool = True, color: bool | None = None) -> None:
    """Print ``text``, which may hold colours. Everything else that a terminal or a CI runner obeys is escaped."""
    click.echo(_harmless(text), file=own(err=err), nl=nl, color=color)


def show(text: str, *, err: bool = False) -> None:
    """Print a report on one model, at most `MAX_LINES` lines of it."""
    echo(shortened(text), err=err)


def shortened(text: str, most: int = MAX_LINES) -> str:
    """The first ``most`` lines of a report, and how many follow."""
    lines = text.split("\n")
    if len(lines) > most:
        lines = [*lines[: most - 1], f"… and {len(lines) - most + 1:,} more lines (--json has everything)"]
    return "\n".join(line if len(line) <= _MAX_CHARACTERS else f"{line[:_MAX_CHARACTERS]}…" for line in lines)


def document(text: str) -> None:
    """Print a JSON document in ASCII."""
    # A CI runner obeys `##[` anywhere in a line; only strings hold a `#`.
    click.echo(text.replace("##", "#\\u0023"), file=own())


def formatted(text: str) -> None:
    """Print a result whose format has an escaper of its own: workflow commands, SARIF, JUnit, Markdown."""
    click.echo(text, file=own())


def _harmless(text: str) -> str:
    return "\n".join(map(_harmless_line, text.split("\n")))


def _harmless_line(line: str) -> str:
    parts = re.split(_STYLE, line) if "\x1b" in line else [line]
    texts = [shown(part, len(part)) for part in parts[::2]]
    # What a colour divides must not become a command without it.
    if shown("".join(texts), len(line) * 10) != "".join(texts):
        return shown("".join(texts), len(line) * 10)
    parts[::2] = texts
    return "".join(parts)
