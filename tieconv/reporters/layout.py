"""Lines and columns for a terminal that may be a pipe."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

Paint = Callable[[str, str], str]
"""``paint(text, style)``: the text in a style (``heading``, ``good``, ``warning``, ``error``, ``quiet``)."""


def plain(text: str, style: str) -> str:
    """No colour: for pipes, files and NO_COLOR."""
    return text


def columns(rows: Iterable[Sequence[str]], indent: str = "  ", gap: str = "  ", width: int | None = None) -> list[str]:
    """Left-aligned columns; the last is not padded, and broken at ``width``. Rows may have fewer cells than others."""
    table = [list(row) for row in rows]
    widths = [0] * max((len(row) for row in table), default=0)
    for row in table:
        for place, cell in enumerate(row[:-1]):
            widths[place] = max(widths[place], len(cell))
    leads = [indent + "".join(cell.ljust(widths[i]) + gap for i, cell in enumerate(row[:-1])) for row in table]
    return [
        line.rstrip() for lead, row in zip(leads, table, strict=True) if row for line in wrapped(row[-1], lead, width)
    ]


def wrapped(text: str, lead: str, width: int | None) -> list[str]:
    """``lead`` and ``text``, broken at ``width`` columns under the text's start; one line where it is ``None``.

    A pipe gets one line an item, so that it can be searched; names and commands are never broken.
    """
    if width is None or len(lead) + len(text) <= width:
        return [lead + text]
    import textwrap

    lines = textwrap.wrap(
        text, max(width - len(lead), 30), break_long_words=False, break_on_hyphens=False, drop_whitespace=True
    )
    lines = lines or [""]  # no text behind a lead that is wider than the terminal
    return [lead + lines[0], *(" " * len(lead) + line for line in lines[1:])]
