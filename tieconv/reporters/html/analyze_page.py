"""`tieconv analyze --html`: one page that needs no script, no network and no font."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tieconv.checkpoint.results.analysis import Analysis, Measure, Section
from tieconv.reporters.html.plots import plots
from tieconv.reporters.html.printing import PRINT
from tieconv.reporters.html.scatter import Plot, Shade
from tieconv.reporters.html.style import STYLE
from tieconv.reporters.html.svg import STEPS, escape, figure
from tieconv.text import count
from tieconv.version import VERSION

_OPEN = 8
"""The most figures of a table that is open at the start. Longer tables are closed."""

_LEGEND = (
    "Floor: the value of chance, or, for a residual, of rounding. Ceiling: the highest value to expect. "
    "n: the number of rows or tokens behind a figure."
)
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
_LIMIT = 2000  # characters of a sentence


def render(analysis: Analysis) -> str:
    """Return the page. Every text is escaped, and the page forbids the browser to load or run anything."""
    return "\n".join((*_head(analysis), *_body(analysis), "</main>", "</body>", "</html>", ""))


def _head(analysis: Analysis) -> Iterator[str]:
    yield '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">'
    yield f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield '<meta name="color-scheme" content="light dark">\n<link rel="icon" href="data:,">'
    yield f"<title>{escape(analysis.source)} – tieconv analyze</title>"
    yield f"<style>\n{STYLE}{PRINT}</style>\n</head>\n<body>\n<main>"


def _body(analysis: Analysis) -> Iterator[str]:
    yield f"<header><h1>Embedding tables of <code>{escape(analysis.source)}</code></h1>"
    headline = analysis.headline
    yield f'<div class="verdict"><p class="asked">{escape(headline.question, _LIMIT)}</p>'
    yield f"<p>{escape(headline.answer, _LIMIT)}</p>"
    if headline.certainty:
        yield f'<p class="sure">How sure: {escape(headline.certainty, _LIMIT)}.</p>'
    yield f'<p class="sure">Relation of the two tables: <span class="chip">{escape(analysis.relation)}</span></p>'
    yield "</div></header>"
    for number, section in enumerate(analysis.sections):
        yield from _section(section, number)
    yield f"<footer><p>{_LEGEND}</p>"
    yield f"<p>tieconv {escape(VERSION)}. Every number of this page is in <code>--json</code>.</p></footer>"


def _section(section: Section, number: int) -> Iterator[str]:
    yield f"<section><h2>{escape(section.title)}</h2>"
    yield f"<p>{escape(section.sentence, _LIMIT)}</p>"
    if section.legend:
        yield f"<p>{escape(section.legend, _LIMIT)}</p>"
    drawn = plots(section)
    if drawn:
        yield '<div class="plots">'
        for index, plot in enumerate(drawn):
            yield from _figure(plot, f"s{number}p{index}")
        yield "</div>"
    if section.measures:
        yield from _table(section.measures)
    yield "</section>"


def _figure(plot: Plot, key: str) -> Iterator[str]:
    """``key`` is unique on the page."""
    yield f"<figure><h3>{escape(plot.heading)}</h3>"
    if plot.legend:
        yield '<ul class="legend">'
        yield from (f'<li><i class="swatch {style}"></i>{escape(name)}</li>' for style, name in plot.legend)
        yield from (f'<li><i class="mark {kind}"></i>{escape(name)}</li>' for kind, name in plot.marks)
        yield "</ul>"
    if plot.shades:
        yield from _switch(plot.shades, key)
    else:
        yield from _ramp(plot.ramp) if plot.ramp else ()
        yield plot.drawing
    yield f"<figcaption>{escape(plot.says, _LIMIT)}</figcaption></figure>"


def _switch(shades: Sequence[Shade], key: str) -> Iterator[str]:
    """Yield a radio button for each drawing. The style sheet alone switches; the first is shown at the start."""
    yield '<div class="switch" role="group" aria-label="coloured by">'
    for index, shade in enumerate(shades):
        checked = " checked" if index == 0 else ""
        yield f'<input type="radio" name="{key}" id="{key}c{index}" class="k{index}"{checked}>'
        yield f'<label for="{key}c{index}">{escape(shade.name)}</label>'
    for index, shade in enumerate(shades):
        yield f'<div class="shade k{index}">'
        yield from _ramp(shade.ramp)
        yield f"{shade.drawing}</div>"
    yield "</div>"


def _ramp(ends: tuple[str, str]) -> Iterator[str]:
    swatches = "".join(f'<i class="swatch q{step}"></i>' for step in range(STEPS))
    yield f'<p class="legend ramp"><span>{escape(ends[0])}</span><span>{swatches}</span>'
    yield f"<span>{escape(ends[1])}</span></p>"


def _table(measures: Sequence[Measure]) -> Iterator[str]:
    yield f"<details{' open' if len(measures) <= _OPEN else ''}><summary>{count(len(measures), 'figure')}</summary>"
    heads = "".join(f"<th>{title}</th>" for title in ("measure", "value", "floor", "ceiling", "n", "meaning"))
    yield f"<table><thead><tr>{heads}</tr></thead><tbody>"
    for measure in measures:
        yield f"<tr><td>{escape(measure.name)}</td>{_cell('value', measure.value, measure.units)}"
        yield _cell("floor", measure.floor) + _cell("ceiling", measure.ceiling) + _cell("n", measure.n)
        yield f"<td>{escape(measure.says, _LIMIT)}</td></tr>"
    yield "</tbody></table></details>"


def _cell(title: str, value: float | None, unit: str = "") -> str:
    if value is None and title != "value":
        return '<td class="none">–</td>'
    if value is None:
        return f'<td data-of="{title}">not given</td>'
    return f'<td data-of="{title}">{figure(value)}{f" {escape(unit)}" if unit else ""}</td>'
