"""The plots of a section, chosen by the names of its series. Each has a text that explains it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isfinite, log10

from tieconv.checkpoint.results.analysis import Section
from tieconv.reporters.html.bars import bars
from tieconv.reporters.html.scatter import Plot, Recognised, Series, frequency, plane, quantile, span
from tieconv.reporters.html.svg import WIDTH, Frame, Point, figure, step_of, svg

_BINS = 100
_ROWS = ((0.0, "first row"), (1.0, "last row"))
_NAMES = {"tied": "tied table", "embed": "input embedding", "head": "output head", "": "input embedding"}
_STYLES = {"input embedding": "c0", "output head": "c1", "tied table": "c2"}


def plots(section: Section) -> list[Plot]:
    """Return the plots of a section. A series with an unknown name becomes a line."""
    left = {name: _finite(points) for name, points in section.series.items()}
    drawings = list(bars_plot(section))
    for recognise in (plane, frequency, _bias, _difference, _norms, _spectra, _scores, _losses):
        drawn, used = recognise(left)
        drawings += drawn
        left = {name: points for name, points in left.items() if name not in used}
    return drawings + [_unknown(name, points) for name, points in left.items() if len(points) > 1]


def bars_plot(section: Section) -> Iterator[Plot]:
    """Yield the bars of a section that compares pairs of tables, with floor and ceiling."""
    drawing = bars(section.measures)
    if drawing:
        yield Plot(
            "Agreement, compared with chance and with two untied seeds",
            drawing,
            "Only a bar beyond the chance mark is evidence. Expect no bar to pass the ceiling mark. "
            "Trust neighbours, pairs and norms, because fitted maps favour the more regular table.",
            (("c0", "tied table and untied input"), ("c1", "tied table and untied output")),
            marks=(("floor", "chance"), ("ceiling", "ceiling: two untied seeds")),
        )


def _bias(series: Series) -> Recognised:
    if not series.get("bias"):
        return [], set()
    bias = series["bias"]
    frame = Frame("bias by row", (0, 1), span(bias), "rows in their order", "bias", _ROWS)
    frame.dots(_by_row(bias), "c0")
    says = (
        "The bias of each row. Removing a constant bias costs nothing. A varying bias changes the logits of every "
        "position, so remove it only if the bound above is small."
    )
    return [Plot("Bias by row", frame.svg(), says)], {"bias"}


def _difference(series: Series) -> Recognised:
    values = series.get("row_difference", ())
    if not values:
        return [], set()
    equal = sum(1 for value in values if value == 0)
    if equal == len(values):
        says = "Every row shown is equal in both tables. The copy is redundant, and tieconv retie drops it."
    else:
        says = (
            f"{equal:,} of {len(values):,} rows shown are equal. The colour of the others shows the size of the "
            "difference. Colour only at the end is mostly padding. Colour in all rows may be rounding, a map or "
            "training; the first sentence of this section says which."
        )
    drawing, ramp = _cells(values)
    return [Plot("Where the two tables differ", drawing, says, ramp=ramp)], {"row_difference"}


def _cells(values: Sequence[float]) -> tuple[str, tuple[str, str] | None]:
    """Draw a map of the rows, 64 on a line, the first at the top left. Equal rows are grey."""
    across = min(64, len(values))
    size = WIDTH / across
    positive = [log10(value) for value in values if value > 0]
    low, high = (min(positive), max(positive)) if positive else (0.0, 0.0)
    marks: dict[str, list[str]] = {}
    for index, value in enumerate(values):
        style = f"q{step_of(log10(value), low, high)}" if value > 0 else "same"
        x, y = index % across * size, index // across * size
        marks.setdefault(style, []).append(f"M{x:.1f} {y:.1f}h{size - 0.6:.1f}v{size - 0.6:.1f}h-{size - 0.6:.1f}z")
    parts = [f'<path class="cell {style}" d="{"".join(squares)}"/>' for style, squares in sorted(marks.items())]
    drawing = svg("difference of each row", -(-len(values) // across) * size, parts)
    return drawing, (f"‖difference‖, log scale: {figure(10**low)}", figure(10**high)) if positive else None


def _norms(series: Series) -> Recognised:
    names = [name for name in series if name.endswith("_norm") and len(series[name]) > 1]
    if not names:
        return [], set()
    everything = [value for name in names for value in series[name]]
    frame = Frame("row norms", (0, 1), span([0.0, quantile(everything, 0.998)]), "rows in their order", "‖row‖", _ROWS)
    legend = tuple(_styled(names, "_norm"))
    for name, (style, _) in zip(names, legend, strict=True):
        low, middle, high = _binned(series[name], frame.y[1])
        frame.band(low, high, style)
        frame.line(middle, style)
    says = (
        "The length of rows. The line is the median, and the band holds four of five rows. Tables of one role rise and "
        "fall together. A flat line at the end is padding. The section Rows lists special rows."
    )
    return [Plot("Norm profile", frame.svg(), says, legend)], set(names)


def _spectra(series: Series) -> Recognised:
    names = [name for name in series if name.endswith("spectrum") and any(value > 0 for value in series[name])]
    if not names:
        return [], set()
    top = max(value for name in names for value in series[name])
    bottom = max(top * 1e-6, min(value for name in names for value in series[name] if value > 0))
    frame = Frame(
        "singular values",
        (0, 1),
        (bottom, top),
        "components, strongest first",
        "singular value",
        ((0.0, "first"), (1.0, "last")),
        log=True,
    )
    legend = tuple(_styled(names, "spectrum"))
    for name, (style, _) in zip(names, legend, strict=True):
        frame.line([(x, value) for x, value in _by_row(series[name]) if value >= bottom], style)
    says = (
        "The size of the table in each direction. A steep start is one direction that all tokens share, which is "
        "common in output tables. A fall to zero at the end shows directions that the model does not use."
    )
    return [Plot("Spectrum", frame.svg(), says, legend)], set(names)


def _losses(series: Series) -> Recognised:
    names = [name for name in series if name.startswith("loss ") and len(series[name]) > 1]
    if not names:
        return [], set()
    frame = Frame(
        "training loss",
        (0, 1),
        span(value for name in names for value in series[name]),
        "steps",
        "nats per word",
        ((0.0, "first step"), (1.0, "last step")),
    )
    legend = tuple((f"c{index % 5}", name.removeprefix("loss ")) for index, name in enumerate(names))
    for name, (style, _) in zip(names, legend, strict=True):
        frame.line(_by_row(series[name]), style)
    says = "The training loss of each step. If a line still falls at the end, train longer before you use the results."
    return [Plot("Training", frame.svg(), says, legend)], set(names)


def _scores(series: Series) -> Recognised:
    values = series.get("under_trained_score", ())
    if len(values) < 2:
        return [], set()
    frame = Frame(
        "scores of tokens",
        (0, 1),
        span(values),
        "tokens, from suspect to well trained",
        "score",
        ((0.0, "lowest"), (1.0, "highest")),
    )
    frame.line(_by_row(values), "c0")
    says = (
        "How far each token is from the rows that were never trained. A flat part at the start is a group of untrained "
        "tokens. Filter them from prompts, or train them, before a release."
    )
    return [Plot("Untrained tokens", frame.svg(), says)], {"under_trained_score"}


def _unknown(name: str, points: Sequence[float]) -> Plot:
    heading = name.replace("_", " ")
    frame = Frame(heading, (0, 1), span(points), "in the order of the report", "", ((0.0, "first"), (1.0, "last")))
    frame.line(_by_row(points), "c0")
    return Plot(heading, frame.svg(), "The numbers in order. A step between them separates groups.")


def _styled(names: Sequence[str], suffix: str) -> Iterator[tuple[str, str]]:
    """Yield the colour and the name of each series. A role has the same colour in every plot."""
    for index, name in enumerate(names):
        stem = name.removesuffix(suffix).rstrip("_")
        shown_as = _NAMES.get(stem, stem)
        yield _STYLES.get(shown_as, f"c{(index + 3) % 5}"), shown_as


def _finite(points: Sequence[float]) -> list[float]:
    """Replace each value that is not a finite number, or would overflow a plot's arithmetic, with 0."""
    return [
        float(value) if isinstance(value, (int, float)) and isfinite(value) and abs(value) < 1e150 else 0.0
        for value in points
    ]


def _by_row(values: Sequence[float]) -> list[Point]:
    return [(index / max(1, len(values) - 1), value) for index, value in enumerate(values)]


def _binned(values: Sequence[float], most: float) -> tuple[list[Point], list[Point], list[Point]]:
    """Return the 10 %, 50 % and 90 % quantiles of the values in each of `_BINS` stretches, at most ``most``."""
    count = min(_BINS, len(values))
    lines: tuple[list[Point], list[Point], list[Point]] = ([], [], [])
    for number in range(count):
        part = sorted(values[number * len(values) // count : (number + 1) * len(values) // count])
        for line, share in zip(lines, (0.1, 0.5, 0.9), strict=True):
            line.append((number / max(1, count - 1), min(most, part[round(share * (len(part) - 1))])))
    return lines
