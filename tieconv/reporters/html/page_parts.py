"""The parts that the pages of an analysis share: the head of the document, the answer, and figures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tieconv.checkpoint.results.analysis import Headline
from tieconv.reporters.html.printing import PRINT
from tieconv.reporters.html.scatter import Plot, Shade
from tieconv.reporters.html.style import STYLE
from tieconv.reporters.html.svg import STEPS, escape

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
LIMIT = 2000
"""Characters of a sentence."""


def whole(title: str, body: Iterable[str]) -> str:
    """Return the page. It forbids the browser to load or run anything. ``title`` is text, ``body`` is HTML."""
    return "\n".join((*_head(title), *body, "</main>", "</body>", "</html>", ""))


def _head(title: str) -> Iterator[str]:
    yield '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">'
    yield f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield '<meta name="color-scheme" content="light dark">\n<link rel="icon" href="data:,">'
    yield f"<title>{escape(title)}</title>"
    yield f"<style>\n{STYLE}{PRINT}</style>\n</head>\n<body>\n<main>"


def asked(headline: Headline) -> Iterator[str]:
    """Yield the question, the answer and its certainty, inside an open ``div``."""
    yield f'<div class="verdict"><p class="asked">{escape(headline.question, LIMIT)}</p>'
    yield f"<p>{escape(headline.answer, LIMIT)}</p>"
    if headline.certainty:
        yield f'<p class="sure">How sure: {escape(headline.certainty, LIMIT)}.</p>'


def drawn_figure(plot: Plot, key: str) -> Iterator[str]:
    """Yield a figure with its legend and caption. ``key`` is unique on the page."""
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
    yield f"<figcaption>{escape(plot.says, LIMIT)}</figcaption></figure>"


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
