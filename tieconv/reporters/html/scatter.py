"""Plots with one dot for each token: the map of a table, and numbers against word frequency."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean

from tieconv.checkpoint.value_type import record
from tieconv.reporters.html.svg import STEPS, Frame, Point, figure, step_of

Series = Mapping[str, Sequence[float]]

_FEW = 800  # dots that may be large without hiding each other
_MOST = 8  # colourings that the style sheet can switch between
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


Recognised = tuple[list[Plot], set[str]]


def plane(series: Series) -> Recognised:
    """Return the map of tokens, once for each colour, and the names of the series that it uses."""
    names = {"plane_x", "plane_y"}
    if not names <= set(series) or not series["plane_x"] or len(series["plane_x"]) != len(series["plane_y"]):
        return [], set()
    points = list(zip(series["plane_x"], series["plane_y"], strict=True))
    colours = [name for name in series if name.startswith("plane_colour") and len(series[name]) == len(points)]
    shades = tuple(_shade(name.partition(" ")[2] or "value", points, series[name]) for name in colours[:_MOST])
    says = (
        "Each dot is a token. If the colour changes evenly along a direction, the table stores its value in that "
        "direction. A separate cluster may be padding or untrained tokens. The section Rows lists them."
    )
    drawing = shades[0].drawing if shades else _shade("", points, [0.0] * len(points)).drawing
    ramp = (f"{shades[0].name}: {shades[0].ramp[0]}", shades[0].ramp[1]) if shades else None
    plot = Plot("Map of tokens", drawing, says, ramp=ramp, shades=shades if len(shades) > 1 else ())
    return [plot], names | set(colours)


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


def frequency(series: Series) -> Recognised:
    """Return a plot with a best line for each series that has values at ``log_p``."""
    log_p, used = series.get("log_p", ()), set[str]()
    plots = []
    for name in series:
        values = series[name]
        if name.endswith(_AGAINST) and len(values) == len(log_p) > 1:
            plots.append(_against(name.removesuffix(_AGAINST).replace("_", " "), log_p, values))
            used |= {name, "log_p"}
    return plots, used


def _against(name: str, log_p: Sequence[float], values: Sequence[float]) -> Plot:
    title, meaning = _FREQUENCY.get(name, (name, "It follows {slope} × log p."))
    points = list(zip(log_p, values, strict=True))
    slope, start, r2 = _fit(points)
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


def _fit(points: Sequence[Point]) -> tuple[float, float, float]:
    """Return slope, start and R² of the least-squares line."""
    mean_x, mean_y = fmean(x for x, _ in points), fmean(y for _, y in points)
    spread, height = sum((x - mean_x) ** 2 for x, _ in points), sum((y - mean_y) ** 2 for _, y in points)
    joint = sum((x - mean_x) * (y - mean_y) for x, y in points)
    slope = joint / spread if spread > 0 else 0.0
    return slope, mean_y - slope * mean_x, slope * joint / height if height > 0 else 0.0
