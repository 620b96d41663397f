"""`tieconv analyze --html`: one page that needs no script, no network and no font."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tieconv.checkpoint.results.analysis import Analysis, Measure, Section
from tieconv.reporters.html.page_parts import LIMIT, asked, drawn_figure, whole
from tieconv.reporters.html.plots import plots
from tieconv.reporters.html.svg import escape, figure
from tieconv.text import count
from tieconv.version import VERSION

_OPEN = 8
"""The most figures of a table that is open at the start. Longer tables are closed."""

_LEGEND = (
    "Floor: the value of chance, or, for a residual, of rounding. Ceiling: the highest value to expect. "
    "n: the number of rows or tokens behind a figure."
)


def render(analysis: Analysis) -> str:
    """Return the page. Every text is escaped, and the page forbids the browser to load or run anything."""
    return whole(f"{analysis.source} – tieconv analyze", _body(analysis))


def _body(analysis: Analysis) -> Iterator[str]:
    yield f"<header><h1>Embedding tables of <code>{escape(analysis.source)}</code></h1>"
    yield from asked(analysis.headline)
    yield f'<p class="sure">Relation of the two tables: <span class="chip">{escape(analysis.relation)}</span></p>'
    yield "</div></header>"
    for number, section in enumerate(analysis.sections):
        yield from _section(section, number)
    yield f"<footer><p>{_LEGEND}</p>"
    yield f"<p>tieconv {escape(VERSION)}. Every number of this page is in <code>--json</code>.</p></footer>"


def _section(section: Section, number: int) -> Iterator[str]:
    yield f"<section><h2>{escape(section.title)}</h2>"
    yield f"<p>{escape(section.sentence, LIMIT)}</p>"
    if section.legend:
        yield f"<p>{escape(section.legend, LIMIT)}</p>"
    drawn = plots(section)
    if drawn:
        yield '<div class="plots">'
        for index, plot in enumerate(drawn):
            yield from drawn_figure(plot, f"s{number}p{index}")
        yield "</div>"
    if section.measures:
        yield from _table(section.measures)
    yield "</section>"


def _table(measures: Sequence[Measure]) -> Iterator[str]:
    yield f"<details{' open' if len(measures) <= _OPEN else ''}><summary>{count(len(measures), 'figure')}</summary>"
    heads = "".join(f"<th>{title}</th>" for title in ("measure", "value", "floor", "ceiling", "n", "meaning"))
    yield f"<table><thead><tr>{heads}</tr></thead><tbody>"
    for measure in measures:
        yield f"<tr><td>{escape(measure.name)}</td>{_cell('value', measure.value, measure.units)}"
        yield _cell("floor", measure.floor) + _cell("ceiling", measure.ceiling) + _cell("n", measure.n)
        yield f"<td>{escape(measure.says, LIMIT)}</td></tr>"
    yield "</tbody></table></details>"


def _cell(title: str, value: float | None, unit: str = "") -> str:
    if value is None and title != "value":
        return '<td class="none">–</td>'
    if value is None:
        return f'<td data-of="{title}">not given</td>'
    return f'<td data-of="{title}">{figure(value)}{f" {escape(unit)}" if unit else ""}</td>'
