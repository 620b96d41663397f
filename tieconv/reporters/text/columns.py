"""Lines and columns for a terminal that may be a pipe."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

Paint = Callable[[str, str], str]
"""``paint(text, style)``: the text in a style (``heading``, ``good``, ``warning``, ``error``, ``quiet``)."""


_ROOM = 24
"""The fewest columns that a text is broken into beside what leads it; with fewer it goes below."""
_STYLE = r"\x1b\[[0-9;]*m"


def plain(text: str, style: str) -> str:
    """No colour: for pipes, files and NO_COLOR."""
    return text


def columns(rows: Iterable[Sequence[str]], indent: str = "  ", gap: str = "  ", width: int | None = None) -> list[str]:
    """Left-aligned columns; the last is not padded, and broken at ``width``. Rows may have fewer cells than others."""
    table = [list(row) for row in rows]
    widths = [0] * max((len(row) for row in table), default=0)
    for row in table:
        for index, cell in enumerate(row[:-1]):
            widths[index] = max(widths[index], _seen(cell))
    leads = [
        indent + "".join(cell + " " * (widths[i] - _seen(cell)) + gap for i, cell in enumerate(row[:-1]))
        for row in table
    ]
    return [
        line.rstrip() for lead, row in zip(leads, table, strict=True) if row for line in wrapped(row[-1], lead, width)
    ]


def wrapped(text: str, lead: str, width: int | None) -> list[str]:
    """``lead`` and ``text``, broken at ``width`` columns under the text's start; one line where it is ``None``.

    A pipe gets one line an item, so that it can be searched; names and commands are never broken. Where the lead
    leaves less than 24 columns, or is that wide and leaves too few for the longest word, the text goes below it.
    """
    if width is None or _seen(lead) + _seen(text) <= width:
        return [lead + text]
    room = width - _seen(lead)
    longest = max(map(len, text.split()), default=0)
    if text and (room < _ROOM or (longest > room and _seen(lead.strip()) > _ROOM)):
        shown = lead.rstrip()
        below = " " * (len(lead) - len(lead.lstrip()) + 4 if shown else 6)
        return [*filter(None, [shown]), *(below + line for line in _filled(text, width - len(below)))]
    first, *rest = _filled(text, room) or [""]  # no text behind a lead that is wider than the terminal
    return [lead + first, *(" " * _seen(lead) + line for line in rest)]


def _filled(text: str, room: int) -> list[str]:
    """As `textwrap`, which counts colours as columns and would break words and hyphens."""
    lines: list[str] = []
    for word in text.split():
        if lines and _seen(lines[-1]) + 1 + _seen(word) <= max(room, _ROOM):
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def _seen(text: str) -> int:
    """The columns that a text takes, its colours not counted."""
    return len(re.sub(_STYLE, "", text) if "\x1b" in text else text)
