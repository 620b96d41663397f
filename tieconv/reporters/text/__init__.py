"""Reports for a terminal."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from tieconv.checkpoint.finding import REVIEW_FIRST, Finding, Remedy
from tieconv.text import shown

# Wrap lines and align columns for a terminal or a pipe.

Paint = Callable[[str, str], str]
"""``paint(text, style)`` returns the text in a style: ``heading``, ``good``, ``warning``, ``error`` or ``quiet``."""

LEVEL_STYLES = {"error": "error", "warning": "warning", "note": "quiet"}
"""The style of each level of findings, the most severe first."""

_ROOM = 24
"""The fewest columns for text beside its lead. With fewer the text starts on the next line."""
_STYLE = r"\x1b\[[0-9;]*m"


def plain(text: str, style: str) -> str:
    """Return the text without colour, for pipes, files and NO_COLOR."""
    return text


def columns(rows: Iterable[Sequence[str]], indent: str = "  ", width: int | None = None) -> list[str]:
    """Return ``rows`` as lines with left-aligned columns. Rows may have different numbers of cells.

    The last column is not padded, and is wrapped at ``width`` columns if it is given.
    """
    table = [list(row) for row in rows]
    widths = [0] * max((len(row) for row in table), default=0)
    for row in table:
        for index, cell in enumerate(row[:-1]):
            widths[index] = max(widths[index], _seen(cell))
    leads = [
        indent + "".join(cell + " " * (widths[i] - _seen(cell)) + "  " for i, cell in enumerate(row[:-1]))
        for row in table
    ]
    return [
        line.rstrip() for lead, row in zip(leads, table, strict=True) if row for line in wrapped(row[-1], lead, width)
    ]


def wrapped(text: str, lead: str, width: int | None) -> list[str]:
    """Return ``lead`` and ``text`` as lines of at most ``width`` columns, aligned at the start of the text.

    With ``width`` ``None``, as for a pipe, the item is one line, which can be searched. Names and commands are never
    broken. The text starts below the lead if fewer than 24 columns are left. Beside a lead of more than 24 columns it
    also starts below if its longest word does not fit.
    """
    if width is None or _seen(lead) + _seen(text) <= width:
        return [lead + text]
    room = width - _seen(lead)
    longest = max(map(len, text.split()), default=0)
    if text and (room < _ROOM or (longest > room and _seen(lead.strip()) > _ROOM)):
        above = lead.rstrip()
        below = " " * (len(lead) - len(lead.lstrip()) + 4 if above else 6)
        return [*filter(None, [above]), *(below + line for line in _filled(text, width - len(below)))]
    first, *rest = _filled(text, room) or [""]  # the lead is wider than the terminal, and the text is empty
    return [lead + first, *(" " * _seen(lead) + line for line in rest)]


def marked(text: str, lead: str, width: int | None, paint: Paint, word: str, style: str) -> list[str]:
    """Return `wrapped` lines with the first ``word`` in a style."""
    first, *rest = wrapped(text, lead, width)
    return [first.replace(word, paint(word, style), 1), *rest]


def notes(sentences: Iterable[str], paint: Paint, width: int | None) -> Iterator[str]:
    """Yield the notes of a plan."""
    for sentence in sentences:
        yield from marked(shown(sentence, 400), "  note: ", width, paint, "note", "warning")


def finding_lines(finding: Finding, text: str, paint: Paint, width: int | None) -> Iterator[str]:
    """Yield a finding with ``text`` as its message, and its next command. The text is safe to print."""
    level = str(finding.level)
    lead = f"  {level.ljust(7)}  {shown(finding.rule)}  "
    yield from marked(text, lead, width, paint, level, LEVEL_STYLES[level])
    if finding.remedy:
        yield from next_lines(finding, finding.remedy, " " * len(lead), width)
    elif finding.next_step:
        yield f"{' ' * len(lead)}next: {finding.next_step}"


def next_lines(finding: Finding, remedy: Remedy, indent: str, width: int | None) -> Iterator[str]:
    """Yield the command of a remedy, which is never broken, and whether it needs a review."""
    first = finding.first_step
    if first:
        yield f"{indent}next: {first}"
    yield f"{indent}{'if tied' if first else 'next'}: {shown(remedy.command, len(remedy.command))}"
    if not remedy.safe:
        yield from wrapped(REVIEW_FIRST, indent, width)


def _filled(text: str, room: int) -> list[str]:
    """Fill lines with words. `textwrap` would count colours as columns and break words at hyphens."""
    lines: list[str] = []
    for word in text.split():
        if lines and _seen(lines[-1]) + 1 + _seen(word) <= max(room, _ROOM):
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def _seen(text: str) -> int:
    return len(re.sub(_STYLE, "", text) if "\x1b" in text else text)
