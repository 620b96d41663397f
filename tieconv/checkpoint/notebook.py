"""HTML for a notebook: a line of facts and a small table, in the notebook's own colours."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator

from tieconv.text import shown

_MOST_ROWS = 12
_MOST_CHARACTERS = 400
_BLOCK = '<div class="mathjax_ignore tex2jax_ignore">'  # a name between dollars is not a formula
_STYLE = "text-align:left;vertical-align:top"
_SHORT = 32
"""Characters of a cell that stays on one line."""


def table(name: str, facts: Iterable[str], rows: Iterable[tuple[str, ...]]) -> str:
    """Return the facts of the record ``name`` and its first rows as HTML; all text is escaped."""
    return "".join(_parts(name, facts, [*rows]))


def _parts(name: str, facts: Iterable[str], rows: list[tuple[str, ...]]) -> Iterator[str]:
    yield f"{_BLOCK}<p><strong>{_text(name)}</strong> {' · '.join(map(_text, facts))}</p>"
    if rows:
        yield "<table><tbody>"
        yield from (f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows[:_MOST_ROWS])
        yield "</tbody></table>"
    if len(rows) > _MOST_ROWS:
        yield f"<p>… and {len(rows) - _MOST_ROWS:,} more (print() shows all)</p>"
    yield "</div>"


def _cell(value: str) -> str:
    wrap = "white-space:nowrap" if len(value) <= _SHORT else "overflow-wrap:anywhere"
    return f'<td style="{_STYLE};{wrap}">{_text(value)}</td>'


def _text(value: str) -> str:
    return html.escape(shown(value, _MOST_CHARACTERS))
