"""Draw plots as SVG without scripts: axes, lines, bands, dots and cells.

A plot is `WIDTH` units wide, about a phone's screen, so that its text stays readable on a narrow page.
Colours are classes of the page's style sheet: `c0`… for series, `q0`…`q6` for steps from low to high.
"""

from __future__ import annotations

import html
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import ceil, floor, isfinite, log10
from statistics import fmean

from tieconv.checkpoint.results.analysis import Measure
from tieconv.checkpoint.value_type import record
from tieconv.reporters.html import STYLE
from tieconv.text import shown
from tieconv.version import VERSION

WIDTH = 400
STEPS = 7
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 12, 10, 42

Point = tuple[float, float]


def escape(value: object, limit: int = 200) -> str:
    """Escape any text for an HTML element or a quoted attribute, at most ``limit`` characters."""
    return html.escape(shown(value, limit), quote=True)


def figure(value: float | None) -> str:
    """Return a number with three digits, or a dash for ``None``."""
    if value is None:
        return "–"
    if not isfinite(value):
        return "undefined" if value != value else ("∞" if value > 0 else "−∞")
    text = f"{value:,.0f}" if value == int(value) and abs(value) < 1e9 else f"{value:.3g}"
    return text.replace("-", "−")


_BEYOND = 100.0
"""The farthest that a point is drawn outside the plot, in widths of the plot, so that coordinates stay finite."""


@dataclass
class Frame:
    """A plot with its scales. ``x`` and ``y`` are (low, high) of the data. Points must be finite."""

    label: str
    x: Point
    y: Point
    x_title: str = ""
    y_title: str = ""
    x_ticks: Sequence[tuple[float, str]] | None = None
    height: int = 250
    parts: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.x = _open(self.x)
        self.y = _open(self.y)

    def pixel(self, point: Point) -> Point:
        """Return the coordinates of a point of the data."""
        across = (point[0] - self.x[0]) / (self.x[1] - self.x[0])
        up = (point[1] - self.y[0]) / (self.y[1] - self.y[0])
        across, up = (max(-_BEYOND, min(_BEYOND, share)) for share in (across, up))
        return _LEFT + across * (WIDTH - _LEFT - _RIGHT), self.height - _BOTTOM - up * (self.height - _TOP - _BOTTOM)

    def line(self, points: Iterable[Point], style: str) -> None:
        """Draw a line through points."""
        path = _path(self.pixel(point) for point in points)
        self.parts.append(f'<path class="line {style}" d="{path}"/>')

    def band(self, low: Sequence[Point], high: Sequence[Point], style: str) -> None:
        """Draw the area between two lines."""
        path = _path(self.pixel(point) for point in (*low, *reversed(high)))
        self.parts.append(f'<path class="band {style}" d="{path}Z"/>')

    def mark(self, across: float, kind: str) -> None:
        """Draw a vertical line over the whole height: ``floor`` is dashed, ``ceiling`` is not."""
        x, bottom = self.pixel((across, self.y[0]))
        self.parts.append(f'<path class="{kind}" d="M{x:.1f} {_TOP}V{bottom:.1f}"/>')

    def dots(self, points: Iterable[Point], style: str, *, few: bool = False) -> None:
        """Draw a dot for each point, all in one path. The dots are larger if they are ``few``."""
        size = " few" if few else ""
        marks = "".join(f"M{_at(self.pixel(point))}h0" for point in points)
        if marks:
            self.parts.append(f'<path class="dots {style}{size}" d="{marks}"/>')

    def svg(self) -> str:
        """Return the drawing with its axes behind it."""
        return svg(self.label, self.height, [*self._axes(), *self.parts])

    def _axes(self) -> Iterable[str]:
        bottom = self.height - _BOTTOM
        for value, text in ticks(self.y):
            up = self.height - _BOTTOM - (value - self.y[0]) / (self.y[1] - self.y[0]) * (bottom - _TOP)
            yield f'<path class="grid" d="M{_LEFT} {up:.1f}H{WIDTH - _RIGHT}"/>'
            yield f'<text class="tick" x="{_LEFT - 5}" y="{up + 4:.1f}" text-anchor="end">{text}</text>'
        marks = ticks(self.x) if self.x_ticks is None else self.x_ticks
        for value, text in marks:
            along = _LEFT + (value - self.x[0]) / (self.x[1] - self.x[0]) * (WIDTH - _LEFT - _RIGHT)
            anchor = "start" if along < _LEFT + 12 else "end" if along > WIDTH - _RIGHT - 12 else "middle"
            yield f'<text class="tick" x="{along:.1f}" y="{bottom + 15}" text-anchor="{anchor}">{escape(text)}</text>'
        yield f'<path class="axis" d="M{_LEFT} {bottom}H{WIDTH - _RIGHT}"/>'
        middle = (_LEFT + WIDTH - _RIGHT) / 2
        yield f'<text class="title" x="{middle}" y="{self.height - 6}" '
        yield f'text-anchor="middle">{escape(self.x_title)}</text>'
        if self.y_title:
            yield f'<text class="title" transform="translate(11 {bottom / 2 + 5:.0f}) rotate(-90)" '
            yield f'text-anchor="middle">{escape(self.y_title)}</text>'


def svg(label: str, height: float, parts: Iterable[str]) -> str:
    """Return a drawing that a screen reader calls ``label``."""
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(label)}">' + "".join(parts) + "</svg>"
    )


def ticks(span: Point) -> list[tuple[float, str]]:
    """Return about five round numbers inside a span, each with its text."""
    raw = (span[1] - span[0]) / 5
    power: float = 10.0 ** floor(log10(raw))
    step = next((factor * power for factor in (1, 2, 5) if factor * power >= raw), 10 * power)
    first, final = ceil(span[0] / step - 1e-9), floor(span[1] / step + 1e-9)
    return [(number * step, figure(float(f"{number * step:.6g}"))) for number in range(first, final + 1)]


def step_of(value: float, low: float, high: float) -> int:
    """Return the number of the colour, of `STEPS`, for a value between ``low`` and ``high``."""
    if high <= low:
        return 0
    return max(0, min(STEPS - 1, int((value - low) / (high - low) * STEPS)))


def _open(span: Point) -> Point:
    """Return the span, widened if its ends are equal or almost equal."""
    low, high = span
    if high - low > 1e-9 * max(abs(low), abs(high)) and high - low > 1e-300:
        return span
    room = abs(low) * 0.5 or 1.0
    return low - room, high + room


def _path(points: Iterable[Point]) -> str:
    return "M" + "L".join(map(_at, points))


def _at(point: Point) -> str:
    return f"{point[0]:.1f} {point[1]:.1f}"


# Plots with one dot for each token: the map of a table, and numbers against word frequency.

Series = Mapping[str, Sequence[float]]

_FEW = 800  # dots that may be large without hiding each other
_AGAINST = "_at_log_p"
_FOLLOWS = 0.1  # R² below which the text does not name word frequency
_FREQUENCY = {
    "bias": (
        "Bias",
        "The bias follows {slope} × log p. The line is word frequency, and removing the bias loses it. Dots far from "
        "the line are tokens that the bias treats separately.",
    ),
    "implicit bias": (
        "Implicit bias U·mean(h)",
        "The logits of the mean hidden state follow {slope} × log p. If the dots are close to the line, they hold the "
        "word frequency. Then removing a bias does not remove it.",
    ),
}
_NO_LINE = "Word frequency does not explain the values. Look for another difference between high and low dots."


@record
class Shade:
    """One colouring of a drawing: what it shows, the drawing (SVG), and the numbers at both ends of its ramp."""

    name: str
    drawing: str
    ramp: tuple[str, str]


@record
class Plot:
    """A drawing (SVG), its heading, the names of its colours and marks, and the text below it (not HTML).

    ``shades`` replace ``drawing`` if there are several.
    """

    heading: str
    drawing: str
    says: str
    legend: tuple[tuple[str, str], ...] = ()
    ramp: tuple[str, str] | None = None
    marks: tuple[tuple[str, str], ...] = ()
    shades: tuple[Shade, ...] = ()


def plane(series: Series) -> Iterator[Plot]:
    """Yield the map of tokens, once for each colour."""
    points = list(zip(series.get("plane_x", ()), series.get("plane_y", ()), strict=True))
    colours = [name for name in series if name.startswith("plane_colour ")]
    if not points:
        return
    shades = tuple(_shade(name.partition(" ")[2], points, series[name]) for name in colours)
    says = (
        "Each dot is a token. If the colour changes evenly along a direction, the table stores its value in that "
        "direction. A separate cluster may be padding or untrained tokens. The section Rows lists them."
    )
    first = shades[0]
    ramp = f"{first.name}: {first.ramp[0]}", first.ramp[1]
    yield Plot("Map of tokens", first.drawing, says, ramp=ramp, shades=shades if len(shades) > 1 else ())


def _shade(name: str, points: Sequence[Point], values: Sequence[float]) -> Shade:
    low, high = quantile(values, 0.02), quantile(values, 0.98)
    if low == high:  # few that differ from the rest are not to be lost
        low, high = span(values)
    label = f"tokens on the two widest directions, coloured by {name}"
    across, up = span(x for x, _ in points), span(y for _, y in points)
    frame = Frame(label, across, up, "first principal direction", "second", height=330)
    for step in range(STEPS):
        frame.dots(
            (p for p, v in zip(points, values, strict=True) if step_of(v, low, high) == step),
            f"q{step}",
            few=len(points) <= _FEW,
        )
    return Shade(name, frame.svg(), (figure(low), figure(high)))


def frequency(series: Series) -> Iterator[Plot]:
    """Yield a plot with a best line for each series that has values at ``log_p``."""
    for name, values in series.items():
        if name.endswith(_AGAINST) and len(values) > 1:
            yield _against(name.removesuffix(_AGAINST).replace("_", " "), series["log_p"], values)


def _against(name: str, log_p: Sequence[float], values: Sequence[float]) -> Plot:
    title, meaning = _FREQUENCY.get(name, (name, "It follows {slope} × log p."))
    points = list(zip(log_p, values, strict=True))
    # Slope, start and R² of the least-squares line.
    mean_x, mean_y = fmean(left for left, _ in points), fmean(up for _, up in points)
    spread, height = sum((left - mean_x) ** 2 for left, _ in points), sum((up - mean_y) ** 2 for _, up in points)
    joint = sum((left - mean_x) * (up - mean_y) for left, up in points)
    slope = joint / spread if spread > 0 else 0.0
    start, r2 = mean_y - slope * mean_x, slope * joint / height if height > 0 else 0.0
    frame = Frame(f"{title} against log p", span(log_p), span(values), "log p of the token in the text", name)
    frame.dots(points, "c0", few=len(points) <= _FEW)
    frame.line(_cut([(x, start + slope * x) for x in frame.x], frame.y), "c1")
    says = meaning.replace("{slope}", figure(slope)) if r2 >= _FOLLOWS else _NO_LINE
    says = f"The line explains {r2:.0%} of the variance. {says}"
    return Plot(f"{title} against word frequency", frame.svg(), says, (("c0", "token"), ("c1", "best line")))


def _cut(ends: Sequence[Point], most: Point) -> Iterator[Point]:
    """Yield the ends of the part of a line between the heights of ``most``."""
    (x0, y0), (x1, y1) = ends
    for x, y in ends:
        level = min(max(y, most[0]), most[1])
        yield (x0 + (level - y0) * (x1 - x0) / (y1 - y0) if level != y and y1 != y0 else x), level


def span(values: Iterable[float]) -> Point:
    """Return the smallest and the largest value."""
    listed = list(values)
    return min(listed), max(listed)


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value at quantile ``share``, from 0 to 1."""
    return sorted(values)[round(share * (len(values) - 1))]


PAIRS = ("E→T", "U→T")
NAMES = {
    "knn": "nearest neighbours shared",
    "rsa": "pair similarities, rank correlation",
    "norms": "norm profile, correlation",
    "cka": "similarity structure (CKA)",
    "procrustes": "cosine after a rotation",
    "least squares": "cosine after a linear map",
    "identity": "cosine as stored",
}
_BAR, _LABEL, _GAP, _VALUE = 13, 18, 10, 58


def bars(measures: Sequence[Measure]) -> str:
    """Return the drawing as SVG, or an empty text if no measure compares E→T or U→T."""
    measures_by_name = {
        measure.name: measure for measure in measures if measure.value is not None and isfinite(measure.value)
    }
    names = [name for name in NAMES if any(f"{name} {pair}" in measures_by_name for pair in PAIRS)]
    if not names:
        return ""
    low = min(0.0, *(measure.value or 0.0 for measure in measures_by_name.values()))
    axis = _Axis(max(low, -1.0))
    parts: list[str] = []
    top = 0.0
    for name in names:
        parts += _group(name, measures_by_name, top, axis)
        top += _LABEL + 2 * (_BAR + 3) + _GAP
    return svg("agreement of the tied table with either role", top, parts)


class _Axis:
    """From the lowest value, or 0, to 1, with room for numbers at the right."""

    def __init__(self, low: float) -> None:
        self.low = low

    def at(self, value: float) -> float:
        share = (max(self.low, min(1.0, value)) - self.low) / (1 - self.low)
        return round(1 + share * (WIDTH - _VALUE), 1)


def _group(name: str, measures: dict[str, Measure], top: float, axis: _Axis) -> Iterator[str]:
    yield f'<text class="name" x="0" y="{top + 12:.0f}">{NAMES[name]}</text>'
    yield f'<path class="axis" d="M{axis.at(0)} {top + _LABEL - 2:.0f}v{2 * (_BAR + 3) + 1}"/>'
    for index, pair in enumerate(PAIRS):
        measure = measures.get(f"{name} {pair}")
        if measure is not None:
            yield from _bar(measure, index, top + _LABEL + index * (_BAR + 3), axis)


def _bar(measure: Measure, index: int, top: float, axis: _Axis) -> Iterator[str]:
    value = measure.value or 0.0
    start, end = sorted((axis.at(0), axis.at(value)))
    title = f"{measure.name}: {figure(value)}, chance {figure(measure.floor)}, ceiling {figure(measure.ceiling)}"
    yield f'<rect class="bar c{index}" x="{start}" y="{top:.1f}" width="{max(1.0, end - start):.1f}" height="{_BAR}">'
    yield f"<title>{escape(title)}</title></rect>"
    for kind, mark in (("floor", measure.floor), ("ceiling", measure.ceiling)):
        under = kind == "ceiling" and mark is not None and mark <= (measure.floor or 0.0)  # of other seeds: no ceiling
        if mark is not None and isfinite(mark) and not under:
            yield f'<path class="{kind}" d="M{axis.at(mark)} {top - 2:.1f}v{_BAR + 4}"/>'
    text = f"{value:.3f}".replace("-", "−")
    yield f'<text class="value" x="{WIDTH}" y="{top + 11:.1f}" text-anchor="end">{text}</text>'


# `tieconv analyze --figures`: each plot as an SVG file with its legend and caption, for a paper.
#
# A file needs no style sheet of a page: each element has its colours, those of the light page.

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
