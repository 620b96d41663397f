"""Draw plots as SVG without scripts: axes, lines, bands, dots and cells.

A plot is `WIDTH` units wide, about a phone's screen, so that its text stays readable on a narrow page.
Colours are classes of the page's style sheet: `c0`… for series, `q0`…`q6` for steps from low to high.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import ceil, floor, isfinite, log10

from tieconv.text import shown

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
    """A plot with its scales. ``x`` and ``y`` are (low, high) of the data, and ``log`` is a logarithmic y axis.

    Points must be finite, and with ``log`` positive.
    """

    label: str
    x: Point
    y: Point
    x_title: str = ""
    y_title: str = ""
    x_ticks: Sequence[tuple[float, str]] | None = None
    log: bool = False
    height: int = 250
    parts: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.x = _open(self.x)
        self.y = (log10(self.y[0]), log10(self.y[1])) if self.log else self.y
        self.y = _open(self.y)

    def pixel(self, point: Point) -> Point:
        """Return the coordinates of a point of the data."""
        across = (point[0] - self.x[0]) / (self.x[1] - self.x[0])
        up = ((log10(point[1]) if self.log else point[1]) - self.y[0]) / (self.y[1] - self.y[0])
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
        for value, text in _decades(self.y) if self.log else ticks(self.y):
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


def ticks(span: Point, most: int = 5) -> list[tuple[float, str]]:
    """Return round numbers inside a span, each with its text."""
    raw = (span[1] - span[0]) / most
    power: float = 10.0 ** floor(log10(raw))
    step = next((factor * power for factor in (1, 2, 5) if factor * power >= raw), 10 * power)
    first, final = ceil(span[0] / step - 1e-9), floor(span[1] / step + 1e-9)
    return [(number * step, figure(float(f"{number * step:.6g}"))) for number in range(first, final + 1)]


def step_of(value: float, low: float, high: float) -> int:
    """Return the number of the colour, of `STEPS`, for a value between ``low`` and ``high``."""
    if high <= low:
        return 0
    return max(0, min(STEPS - 1, int((value - low) / (high - low) * STEPS)))


def _decades(span: Point) -> list[tuple[float, str]]:
    powers = range(ceil(span[0] - 1e-9), floor(span[1] + 1e-9) + 1)
    if len(powers) < 2:
        return [(value, figure(10.0**value)) for value, _ in ticks(span, 4)]
    every = ceil(len(powers) / 6)
    return [(float(power), figure(10.0**power)) for power in powers[::every]]


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
