"""`tieconv analyze --figures`: each plot as an SVG file with its legend and caption, for a paper.

A file needs no style sheet of a page: each element has its colours, those of the light page.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from functools import cache

from tieconv.reporters.html.scatter import Plot
from tieconv.reporters.html.style import STYLE
from tieconv.reporters.html.svg import STEPS, WIDTH, escape
from tieconv.version import VERSION

_FONT = "system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif"
_LINE, _MARGIN = 15, 12
_CHARACTERS = 68
"""Characters of the caption on a line of `WIDTH` units; of the heading, `_HEADING`."""
_HEADING = 48
_SENTENCE = re.compile(r"(?<=\.) ")
_DRAWING = re.compile(r'<svg viewBox="0 0 [\d.]+ ([\d.]+)"[^>]*>(.*)</svg>', re.S)
_CLASSED = re.compile(r'<(\w+) class="([^"]*)"')
_BARE_TEXT = re.compile(r"<text (?!style=)")
_VARIABLE = re.compile(r"var\(--(\w+)\)")


def svg_files(plots: Sequence[tuple[Plot, str]]) -> dict[str, str]:
    """Return the text of a file for each plot, by name. Each caption ends with the text beside the plot."""
    files: dict[str, str] = {}
    for number, (plot, about) in enumerate(plots, 1):
        words = re.sub(r"[^a-z0-9]+", "-", plot.heading.lower()).strip("-")
        files[f"{number:02}-{words[:60]}.svg"] = _file(plot, about)
    return files


def _file(plot: Plot, about: str) -> str:
    drawing = _DRAWING.fullmatch(plot.drawing)
    assert drawing is not None, "a drawing is one svg element"
    says = " ".join(sentence for sentence in _SENTENCE.split(plot.says) if " section " not in f"{sentence} ")
    caption = f"{says} {about.rstrip('.')}. tieconv {VERSION}."
    parts, top = [], float(_LINE)
    for line in textwrap.wrap(plot.heading, _HEADING):
        parts.append(_text(line, top, "font-size:14px;font-weight:600"))
        top += _LINE
    for entries in _legend(plot):
        parts.append(f'<g transform="translate(0 {top:.0f})">{entries}</g>')
        top += _LINE
    parts.append(f'<g transform="translate(0 {top:.0f})">{_coloured(drawing[2])}</g>')
    top += float(drawing[1]) + _LINE
    for line in textwrap.wrap(caption, _CHARACTERS):
        parts.append(_text(line, top, f"font-size:11px;fill:{_colours()['soft']}"))
        top += _LINE
    width, height = WIDTH + 2 * _MARGIN, top + _MARGIN
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height:.0f}" '
        f'viewBox="{-_MARGIN} {-_MARGIN} {width} {height:.0f}" role="img" font-family="{_FONT}">'
        f"<title>{escape(plot.heading)}</title><desc>{escape(caption, 2000)}</desc>"
        f'<rect x="{-_MARGIN}" y="{-_MARGIN}" width="{width}" height="{height:.0f}" fill="#fff"/>'
        f"{''.join(parts)}</svg>\n"
    )


def _text(words: str, top: float, style: str) -> str:
    return f'<text style="{style}" x="0" y="{top:.0f}">{escape(words)}</text>'


def _legend(plot: Plot) -> Iterator[str]:
    """Yield the lines of the legend: a square or a mark before each name, and the ramp below its ends."""
    if plot.ramp:
        low, high = plot.ramp
        yield _name(f"{low} to {high}", 0)
        yield "".join(_square(f"q{step}", step * 14) for step in range(STEPS))
    for style, name in plot.legend:
        yield _square(style, 0) + _name(name, 18)
    for kind, name in plot.marks:
        line = f'<path class="{"axis chance" if kind == "chance" else kind}" d="M5.5 0v11"/>'
        yield _coloured(line) + _name(name, 18)


def _square(style: str, along: int) -> str:
    return _coloured(f'<rect class="bar {style}" x="{along}" y="0" width="11" height="11"/>')


def _name(words: str, along: int) -> str:
    style = f"font-size:12px;fill:{_colours()['ink']}"
    return f'<text style="{style}" x="{along}" y="10">{escape(words)}</text>'


def _coloured(drawing: str) -> str:
    """Replace the classes of each element by the declarations that the page's style sheet has for them."""
    styled = _CLASSED.sub(lambda match: f'<{match[1]} style="{_declarations(match[1], match[2].split())}"', drawing)
    return _BARE_TEXT.sub(f'<text style="{_declarations("text", [])}" ', styled)


def _declarations(element: str, classes: Sequence[str]) -> str:
    rules = _rules()
    declared = [rules[f"svg {element}"]] if f"svg {element}" in rules else []
    declared += [rules[name] for name in (f".{word}" for word in classes) if name in rules]
    declared += [rules[name] for name in (f"svg .{word}" for word in classes) if name in rules]
    own = next((word for word in classes if word in _colours()), "ink")
    text = ";".join(part for part in ";".join(declared).split(";") if not part.startswith("--of:"))
    return _VARIABLE.sub(lambda match: _colours()[own if match[1] == "of" else match[1]], text)


@cache
def _rules() -> dict[str, str]:
    """Return the first declarations of each selector of one class or element: those of a light screen."""
    rules: dict[str, str] = {}
    for selectors, declarations in re.findall(r"([^{}\n]+)\{([^{}]*)\}", STYLE):
        for selector in selectors.split(","):
            rules.setdefault(selector, declarations)
    return rules


@cache
def _colours() -> dict[str, str]:
    light = STYLE.partition("@media")[0]
    return dict(re.findall(r"--(\w+):(#[0-9a-f]+)", light))
