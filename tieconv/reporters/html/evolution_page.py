"""`tieconv analyze --revisions --html`: one page of curves that needs no script, no network and no font."""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.results.evolution import Evolution, RevisionFigures
from tieconv.reporters.html.curves import curves
from tieconv.reporters.html.page_parts import asked, drawn_figure, whole
from tieconv.reporters.html.svg import escape, figure
from tieconv.text import count
from tieconv.version import VERSION

_LEGEND = (
    "Floor (dashed, in brackets): the value of chance. ±: the standard error over rows or sampled tokens. "
    "n: the number of rows, tokens or pairs behind a figure."
)


def render(evolution: Evolution) -> str:
    """Return the page. Every text is escaped."""
    return whole(f"{evolution.source} – tieconv analyze", _body(evolution))


def _body(evolution: Evolution) -> Iterator[str]:
    yield f"<header><h1>Embedding tables of <code>{escape(evolution.source)}</code> over training</h1>"
    yield from asked(evolution.headline)
    yield "</div></header>"
    yield '<section><div class="plots">'
    for number, plot in enumerate(curves(evolution)):
        yield from drawn_figure(plot, f"p{number}")
    yield "</div></section>"
    yield f"<section><h2>Figures of each revision</h2><p>{_LEGEND}</p>"
    for number, revision in enumerate(evolution.revisions):
        yield from _revision(revision, number == len(evolution.revisions) - 1)
    yield f"</section><footer><p>tieconv {escape(VERSION)}."
    yield "Every number of this page is in <code>--json</code>.</p></footer>"


def _revision(revision: RevisionFigures, is_open: bool) -> Iterator[str]:
    figures = count(len(revision.measures), "figure")
    yield f"<details{' open' if is_open else ''}><summary>{escape(revision.name)}, {figures}</summary>"
    tables = ", ".join(f"{role}: {name}" for role, name in revision.tables.items())
    yield f"<p>{escape(revision.source)} ({escape(tables)}), content {escape(revision.identity[:12])}</p>"
    heads = "".join(f"<th>{title}</th>" for title in ("measure", "value", "floor", "±", "n", "meaning"))
    yield f"<table><thead><tr>{heads}</tr></thead><tbody>"
    for measure in revision.measures:
        value = "not given" if measure.value is None else figure(measure.value)
        yield f'<tr><td>{escape(measure.name)}</td><td data-of="value">{value}</td>'
        yield _cell("floor", measure.floor) + _cell("±", revision.errors.get(measure.name)) + _cell("n", measure.n)
        yield f"<td>{escape(measure.says, 400)}</td></tr>"
    yield "</tbody></table></details>"


def _cell(title: str, number: float | None) -> str:
    return '<td class="none">–</td>' if number is None else f'<td data-of="{title}">{figure(number)}</td>'
