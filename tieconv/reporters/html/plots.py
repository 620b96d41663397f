"""The plots of a section, chosen by the names of its series; each with a sentence on how to read it and what to do."""

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
    """Everything of a section that can be drawn; series of an unknown name are drawn as lines."""
    left = {name: _finite(points) for name, points in section.series.items()}
    drawings = list(bars_plot(section))
    for recognise in (plane, frequency, _bias, _difference, _norms, _spectra, _scores, _losses):
        drawn, used = recognise(left)
        drawings += drawn
        left = {name: points for name, points in left.items() if name not in used}
    return drawings + [_unknown(name, points) for name, points in left.items() if len(points) > 1]


def bars_plot(section: Section) -> Iterator[Plot]:
    """Values against floor and ceiling, where a section compares pairs of tables."""
    drawing = bars(section.measures)
    if drawing:
        yield Plot(
            "Agreement, against chance and against what is possible",
            drawing,
            "Only what reaches beyond the chance mark is evidence, and none can be expected to pass the ceiling mark. "
            "Trust neighbours, pairs and norms: fitted maps favour whichever table is more regular.",
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
        "The bias of each row. A level line costs nothing to strip; spread is what the model says of tokens before it "
        "has read any, so strip it only where the bound above is small."
    )
    return [Plot("Bias by row", frame.svg(), says)], {"bias"}


def _difference(series: Series) -> Recognised:
    values = series.get("row_difference", ())
    if not values:
        return [], set()
    equal = sum(1 for value in values if value == 0)
    if equal == len(values):
        says = "Every row shown is equal in both tables: the copy is redundant, and tieconv retie drops it."
    else:
        says = (
            f"{equal:,} of {len(values):,} rows shown are equal; the others are coloured from the least difference to "
            "the largest. Colour at the end alone is mostly padding; colour all over may be rounding, a map or "
            "training: the first sentence of this part says which, and the verdict whether one table can serve."
        )
    drawing, ramp = _cells(values)
    return [Plot("Where the two tables differ", drawing, says, ramp=ramp)], {"row_difference"}


def _cells(values: Sequence[float]) -> tuple[str, tuple[str, str] | None]:
    """A map of rows, 64 to a line, from the first at the top left; grey where nothing differs."""
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
        "How long rows are (line: median, band: four in five rows). Tables of one role rise and fall together; where "
        "a line goes flat at the end, rows are padding. Look up what stands out in the row report."
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
        "How much of the table lies in each direction. A steep start is one direction that all tokens share, as output "
        "tables have; a fall to nothing at the end is room that the model does not use."
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
    says = "Training loss, step by step. Where a line still falls at the end, train longer before you believe the rest."
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
        "How far each token is from what never trains. A low shelf before the rise is a group of untrained tokens: "
        "filter them from prompts, or train them, before you ship."
    )
    return [Plot("Untrained tokens", frame.svg(), says)], {"under_trained_score"}


def _unknown(name: str, points: Sequence[float]) -> Plot:
    heading = name.replace("_", " ")
    frame = Frame(heading, (0, 1), span(points), "in the order of the report", "", ((0.0, "first"), (1.0, "last")))
    frame.line(_by_row(points), "c0")
    return Plot(heading, frame.svg(), "The numbers in order; a step in them separates groups.")


def _styled(names: Sequence[str], suffix: str) -> Iterator[tuple[str, str]]:
    """The colour and the name of each series: a role has the same colour in every plot."""
    for index, name in enumerate(names):
        stem = name.removesuffix(suffix).rstrip("_")
        shown_as = _NAMES.get(stem, stem)
        yield _STYLES.get(shown_as, f"c{(index + 3) % 5}"), shown_as


def _finite(points: Sequence[float]) -> list[float]:
    """Numbers only, none so large that a plot's arithmetic overflows; what is not stands at 0, to keep its place."""
    return [
        float(value) if isinstance(value, (int, float)) and isfinite(value) and abs(value) < 1e150 else 0.0
        for value in points
    ]


def _by_row(values: Sequence[float]) -> list[Point]:
    return [(index / max(1, len(values) - 1), value) for index, value in enumerate(values)]


def _binned(values: Sequence[float], most: float) -> tuple[list[Point], list[Point], list[Point]]:
    """The tenth, the half and nine tenths of the values in each of `_BINS` stretches, cut at ``most``."""
    count = min(_BINS, len(values))
    lines: tuple[list[Point], list[Point], list[Point]] = ([], [], [])
    for number in range(count):
        part = sorted(values[number * len(values) // count : (number + 1) * len(values) // count])
        for line, share in zip(lines, (0.1, 0.5, 0.9), strict=True):
            line.append((number / max(1, count - 1), min(most, part[round(share * (len(part) - 1))])))
    return lines
