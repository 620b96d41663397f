"""`tieconv analyze --html`: one page that needs no script, no network and no font."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite, log10

from tieconv.checkpoint.results.analysis import Analysis, Evolution, Headline, Measure, Section
from tieconv.checkpoint.value_type import record
from tieconv.reporters.html import STYLE, page, svg
from tieconv.text import count
from tieconv.version import VERSION

_OPEN = 8
"""The most figures of a table that is open at the start. Longer tables are closed."""

_LEGEND = (
    "Floor: the value of chance, or, for a residual, of rounding. Ceiling: the highest value to expect. "
    "n: the number of rows or tokens behind a figure."
)

_TERMS = {
    "residual": "Residual: the length of what a map leaves, as a share of the head. 0 is equal, and 1 is unrelated.",
    "P@1": "P@1: the share of rows that are nearest to the row of the same token.",
    "R²": "R²: the share of the values that a map explains, from 0 to 1.",
    "procrustes": "Procrustes: the rotation that brings one table closest to the other.",
    "cka": "CKA: how alike the similarities of all tokens are in both tables.",
    "rsa": "RSA: how alike the similarities of random pairs of tokens are.",
    "directions used": "Participation ratio: how many directions the rows use evenly.",
    "KL": "KL: how far the probabilities of the next token move. 0 nats leaves them as they are.",
}
"""The terms of the figures, each explained once on a page that has it."""


def render_analysis(analysis: Analysis) -> str:
    """Return the page. Every text is escaped, and the page forbids the browser to load or run anything."""
    return page(f"{svg.escape(analysis.source)} – tieconv analyze", STYLE, _body(analysis))


def _body(analysis: Analysis) -> Iterator[str]:
    yield f"<header><h1>Embedding tables of <code>{svg.escape(analysis.source)}</code></h1>"
    yield from asked(analysis.headline)
    yield f'<p class="sure">Relation of the two tables: <span class="chip">{svg.escape(analysis.relation)}</span></p>'
    yield "</div></header>"
    drawings: set[str] = set()
    for number, section in enumerate(analysis.beyond_headline):
        yield f"<section><h2>{svg.escape(section.title)}</h2>"
        yield f"<p>{svg.escape(section.sentence, LIMIT)}</p>"
        if section.legend:
            yield f"<p>{svg.escape(section.legend, LIMIT)}</p>"
        drawn = [plot for plot in plots(section) if plot.drawing not in drawings]  # two sections measure norms
        drawings.update(plot.drawing for plot in drawn)
        if drawn:
            yield '<div class="plots">'
            for index, plot in enumerate(drawn):
                yield from drawn_figure(plot, f"s{number}p{index}")
            yield "</div>"
        if section.figures:
            ceilings = {measure.name: measure.ceiling for measure in section.figures}
            yield from _table(section.figures, len(section.figures) <= _OPEN, "", "ceiling", ceilings)
        yield "</section>"
    names = " ".join(measure.name for section in analysis.beyond_headline for measure in section.figures)
    terms = " ".join(text for term, text in _TERMS.items() if term in names)
    yield f"<footer><p>{_LEGEND} {terms}</p>"
    yield f"<p>tieconv {svg.escape(VERSION)}. Every number of this page is in <code>--json</code>.</p></footer>"


def _table(
    measures: Sequence[Measure], is_open: bool, of: str, bound: str, bounds: Mapping[str, float | None]
) -> Iterator[str]:
    summary = f"{of}{count(len(measures), 'figure')}"
    yield f"<details{' open' if is_open else ''}><summary>{summary}</summary>"
    heads = "".join(f"<th>{title}</th>" for title in ("measure", "value", "floor", bound, "n", "meaning"))
    yield f"<table><thead><tr>{heads}</tr></thead><tbody>"
    for measure in measures:
        yield f"<tr><td>{svg.escape(measure.name)}</td>{_cell('value', measure.value, measure.units)}"
        yield _cell("floor", measure.floor) + _cell(bound, bounds.get(measure.name)) + _cell("n", measure.n)
        yield f"<td>{svg.escape(measure.meaning, LIMIT)}</td></tr>"
    yield "</tbody></table></details>"


def _cell(title: str, value: float | None, unit: str = "") -> str:
    if value is None and title != "value":
        return '<td class="none">–</td>'
    if value is None:
        return f'<td data-of="{title}">not given</td>'
    return f'<td data-of="{title}">{svg.figure(value)}{f" {svg.escape(unit)}" if unit else ""}</td>'


# The plots of a section, chosen by the names of its series. Each has a text that explains it.

_BINS = 100
_ROWS = ((0.0, "first row"), (1.0, "last row"))
_NORMS = {
    "tied_norm": ("c2", "tied table"),
    "embed_norm": ("c0", "input embedding"),
    "head_norm": ("c1", "output head"),
}


def plots(section: Section) -> list[svg.Plot]:
    """Return the plots of a section."""
    series = {name: _finite(points) for name, points in section.series.items()}
    draws = svg.plane, svg.frequency, _bias, _difference, _norms, _scores, _losses
    return [*bars_plot(section), *(plot for draw in draws for plot in draw(series))]


def bars_plot(section: Section) -> Iterator[svg.Plot]:
    """Yield the bars of a section that compares pairs of tables, with floor and ceiling."""
    drawing = svg.bars(section.measures)
    if drawing:
        yield svg.Plot(
            "Agreement, compared with chance and with two untied seeds",
            drawing,
            "Only a bar beyond the chance mark is evidence. Expect no bar to pass the ceiling mark. "
            "Trust neighbours, pairs and norms, because fitted maps favour the more regular table.",
            (("c0", "tied table and untied input"), ("c1", "tied table and untied output")),
            marks=(("floor", "chance"), ("ceiling", "ceiling: two untied seeds")),
        )


def _bias(series: svg.Series) -> Iterator[svg.Plot]:
    if not series.get("bias"):
        return
    bias = series["bias"]
    frame = svg.Frame("bias by row", (0, 1), svg.span(bias), "rows in their order", "bias", _ROWS)
    frame.dots(_by_row(bias), "c0")
    says = (
        "The bias of each row. Removing a constant bias costs nothing. A varying bias changes the logits of every "
        "position, so remove it only if the bound above is small."
    )
    yield svg.Plot("Bias by row", frame.svg(), says)


def _difference(series: svg.Series) -> Iterator[svg.Plot]:
    values = series.get("row_difference", ())
    if not values:
        return
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
    yield svg.Plot("Where the two tables differ", drawing, says, ramp=ramp)


def _cells(values: Sequence[float]) -> tuple[str, tuple[str, str] | None]:
    """Draw a map of the rows, 64 on a line, the first at the top left. Equal rows are grey."""
    across = min(64, len(values))
    size = svg.WIDTH / across
    positive = [log10(value) for value in values if value > 0]
    low, high = (min(positive), max(positive)) if positive else (0.0, 0.0)
    marks: dict[str, list[str]] = {}
    for index, value in enumerate(values):
        style = f"q{svg.step_of(log10(value), low, high)}" if value > 0 else "same"
        x, y = index % across * size, index // across * size
        marks.setdefault(style, []).append(f"M{x:.1f} {y:.1f}h{size - 0.6:.1f}v{size - 0.6:.1f}h-{size - 0.6:.1f}z")
    parts = [f'<path class="cell {style}" d="{"".join(squares)}"/>' for style, squares in sorted(marks.items())]
    drawing = svg.svg("difference of each row", -(-len(values) // across) * size, parts)
    return drawing, (f"‖difference‖, log scale: {svg.figure(10**low)}", svg.figure(10**high)) if positive else None


def _norms(series: svg.Series) -> Iterator[svg.Plot]:
    names = [name for name in _NORMS if len(series.get(name, ())) > 1]
    if not names:
        return
    everything = [value for name in names for value in series[name]]
    frame = svg.Frame(
        "row norms", (0, 1), svg.span([0.0, svg.quantile(everything, 0.998)]), "rows in their order", "‖row‖", _ROWS
    )
    legend = tuple(_NORMS[name] for name in names)
    for name, (style, _) in zip(names, legend, strict=True):
        # The 10 %, 50 % and 90 % quantiles of the values in each of `_BINS` stretches, at most ``most``.
        values = series[name]
        most = frame.y[1]
        count = min(_BINS, len(values))
        lines: tuple[list[svg.Point], list[svg.Point], list[svg.Point]] = ([], [], [])
        for number in range(count):
            part = sorted(values[number * len(values) // count : (number + 1) * len(values) // count])
            for line, share in zip(lines, (0.1, 0.5, 0.9), strict=True):
                line.append((number / max(1, count - 1), min(most, part[round(share * (len(part) - 1))])))
        low, middle, high = lines
        frame.band(low, high, style)
        frame.line(middle, style)
    says = (
        "The length of rows. The line is the median, and the band holds four of five rows. Tables of one role rise and "
        "fall together. A flat line at the end is padding. The section Rows lists special rows."
    )
    yield svg.Plot("Norm profile", frame.svg(), says, legend)


def _losses(series: svg.Series) -> Iterator[svg.Plot]:
    names = [name for name in series if name.startswith("loss ") and len(series[name]) > 1]
    if not names:
        return
    heights = svg.span(value for name in names for value in series[name])
    ends = (0.0, "first step"), (1.0, "last step")
    frame = svg.Frame("training loss", (0, 1), heights, "steps", "nats per word", ends)
    legend = tuple((f"c{index % 5}", name.removeprefix("loss ")) for index, name in enumerate(names))
    for name, (style, _) in zip(names, legend, strict=True):
        frame.line(_by_row(series[name]), style)
    says = "The training loss of each step. If a line still falls at the end, train longer before you use the results."
    yield svg.Plot("Training", frame.svg(), says, legend)


def _scores(series: svg.Series) -> Iterator[svg.Plot]:
    values = series.get("under_trained_score", ())
    if len(values) < 2:
        return
    across, ends = "tokens, from suspect to well trained", ((0.0, "lowest"), (1.0, "highest"))
    frame = svg.Frame("scores of tokens", (0, 1), svg.span(values), across, "score", ends)
    frame.line(_by_row(values), "c0")
    says = (
        "How far each token is from the rows that were never trained. A flat part at the start is a group of untrained "
        "tokens. Filter them from prompts, or train them, before a release."
    )
    yield svg.Plot("Untrained tokens", frame.svg(), says)


def _finite(points: Sequence[float]) -> list[float]:
    """Replace each value that is not a finite number, or would overflow a plot's arithmetic, with 0."""
    return [
        float(value) if isinstance(value, (int, float)) and isfinite(value) and abs(value) < 1e150 else 0.0
        for value in points
    ]


def _by_row(values: Sequence[float]) -> list[svg.Point]:
    return [(index / max(1, len(values) - 1), value) for index, value in enumerate(values)]


_EVOLUTION_LEGEND = (
    "Floor (dashed, in brackets): the value of chance. ±: the standard error over rows or sampled tokens. "
    "n: the number of rows, tokens or pairs behind a figure."
)


def render_evolution(evolution: Evolution) -> str:
    """Return the page. Every text is escaped."""
    return page(f"{svg.escape(evolution.source)} – tieconv analyze", STYLE, _evolution_body(evolution))


def _evolution_body(evolution: Evolution) -> Iterator[str]:
    yield f"<header><h1>Embedding tables of <code>{svg.escape(evolution.source)}</code> over training</h1>"
    yield from asked(evolution.headline)
    yield "</div></header>"
    yield '<section><div class="plots">'
    for number, plot in enumerate(curves(evolution)):
        yield from drawn_figure(plot, f"p{number}")
    yield "</div></section>"
    yield f"<section><h2>Figures of each revision</h2><p>{_EVOLUTION_LEGEND}</p>"
    for number, revision in enumerate(evolution.revisions):
        of, tables = revision.source, ", ".join(f"{role}: {name}" for role, name in revision.tables.items())
        yield f"<p>{svg.escape(of)} ({svg.escape(tables)}), content {svg.escape(revision.identity[:12])}</p>"
        is_open = number == len(evolution.revisions) - 1
        yield from _table(revision.measures, is_open, f"{svg.escape(revision.name)}, ", "±", revision.errors)
    yield f"</section><footer><p>tieconv {svg.escape(VERSION)}."
    yield "Every number of this page is in <code>--json</code>.</p></footer>"


_ROLES = {"E": ("c0", "input embedding E"), "U": ("c1", "head U"), "T": ("c2", "tied table T")}
_PAIRS = {"E→U": ("c3", "E and U"), "E→T": ("c0", "untied E and T"), "U→T": ("c1", "untied U and T")}
_AGREE = {
    "identity": "Rows of one token as stored, columns centred.",
    "procrustes": "Rows of one token after the best rotation. The chance value is not 0.",
    "least squares": "Rows of one token after the best linear map. The chance value is not 0.",
    "cka": "Similarities of all tokens in both tables. Rotations do not change it.",
    "knn": "The share of a token's nearest tokens that both tables have in common.",
    "rsa": "Cosines of random pairs of tokens, as rank correlation.",
    "norms": "The lengths of the rows of one token, as correlation.",
}


@record
class _Group:
    """One plot: its heading, the title of the vertical axis, its caption, and the style and name of each measure."""

    heading: str
    unit: str
    says: str
    measures: dict[str, tuple[str, str]]


def curves(evolution: Evolution) -> list[svg.Plot]:
    """Return the plots of an evolution: a curve for each measure over the steps, with its floor."""
    return [plot for group in _groups() for plot in _plot(evolution, group)]


def _groups() -> Iterator[_Group]:
    for since, says in (
        ("first", "A row that keeps its direction has 1. The table with the lower curve moved further."),
        ("previous", "A low value means that the rows moved much between two revisions."),
    ):
        measures = {f"cosine {role} to {since}": style for role, style in _ROLES.items()}
        heading = f"Cosine of each row with the {since} revision"
        yield _Group(heading, "mean cosine", f"{says} Columns are not centred.", measures)
    for name, says in _AGREE.items():
        measures = {f"{name} {pair}": style for pair, style in _PAIRS.items()}
        yield _Group(f"Agreement: {svg.NAMES[name]}", "", f"{says} Only a curve above its floor is evidence.", measures)
    measures = {f"mean norm {role}": style for role, style in _ROLES.items()}
    yield _Group("Length of the rows", "mean ‖row‖", "The mean Euclidean length of the rows.", measures)


def _plot(evolution: Evolution, group: _Group) -> Iterator[svg.Plot]:
    lines = {name: _points(evolution, name) for name in group.measures}
    lines = {name: points for name, points in lines.items() if points[0]}
    if not lines:
        return
    steps = [step for step, _ in _places(evolution)]
    heights = [height for values, floors in lines.values() for _, height in (*values, *floors)]
    named = any(revision.step is None for revision in evolution.revisions)
    ticks = _names(evolution) if named else None
    # The range of the values with some room, so that no curve lies on the axis.
    low, high = svg.span(heights)
    room, across = 0.04 * (high - low), "revisions in their order" if named else "training step"
    frame = svg.Frame(group.heading, (min(steps), max(steps)), (low - room, high + room), across, group.unit, ticks)
    for name, (values, floors) in lines.items():
        style = group.measures[name][0]
        frame.line(values, style)
        frame.dots(values, style, few=True)
        if floors:
            frame.line(floors, f"{style} chance")
    legend = tuple(group.measures[name] for name in lines)
    marks = (("chance", "chance, in the same colour"),) if any(floors for _, floors in lines.values()) else ()
    yield svg.Plot(group.heading, frame.svg(), group.says, legend, marks=marks)


def _places(evolution: Evolution) -> Sequence[tuple[float, int]]:
    """Return the position of each revision on the axis, with its number: its step, or its number."""
    return [
        (float(number if revision.step is None else revision.step), number)
        for number, revision in enumerate(evolution.revisions)
    ]


def _points(evolution: Evolution, name: str) -> tuple[list[svg.Point], list[svg.Point]]:
    """Return the points of a measure and of its floor. Revisions without a figure have no point."""
    values: list[svg.Point] = []
    floors: list[svg.Point] = []
    for step, number in _places(evolution):
        measure = evolution.revisions[number].measure(name)
        if measure is None:
            continue
        for height, points in ((measure.value, values), (measure.floor, floors)):
            if height is not None and isfinite(height):
                points.append((step, height))
    return values, floors


def _names(evolution: Evolution) -> list[tuple[float, str]]:
    """Return the names of the first and the last revision as marks of the axis."""
    final = len(evolution.revisions) - 1
    return [(0.0, evolution.revisions[0].name[:20]), (float(final), evolution.revisions[final].name[:20])]


# The parts that the pages of an analysis share: the answer, and figures.

LIMIT = 2000
"""Characters of a sentence."""


def asked(headline: Headline) -> Iterator[str]:
    """Yield the question, the answer and its certainty, inside an open ``div``."""
    yield f'<div class="verdict"><p class="asked">{svg.escape(headline.question, LIMIT)}</p>'
    yield f"<p>{svg.escape(headline.answer, LIMIT)}</p>"
    if headline.certainty:
        yield f'<p class="sure">How sure: {svg.escape(headline.certainty, LIMIT)}.</p>'


def drawn_figure(plot: svg.Plot, key: str) -> Iterator[str]:
    """Yield a figure with its legend and caption. ``key`` is unique on the page."""
    yield f"<figure><h3>{svg.escape(plot.heading)}</h3>"
    if plot.legend:
        yield '<ul class="legend">'
        yield from (f'<li><i class="swatch {style}"></i>{svg.escape(name)}</li>' for style, name in plot.legend)
        yield from (f'<li><i class="mark {kind}"></i>{svg.escape(name)}</li>' for kind, name in plot.marks)
        yield "</ul>"
    if plot.shades:
        # A radio button for each drawing. The style sheet alone switches; the first is shown at the start.
        yield '<div class="switch" role="group" aria-label="coloured by">'
        for index, shade in enumerate(plot.shades):
            checked = " checked" if index == 0 else ""
            yield f'<input type="radio" name="{key}" id="{key}c{index}" class="k{index}"{checked}>'
            yield f'<label for="{key}c{index}">{svg.escape(shade.name)}</label>'
        for index, shade in enumerate(plot.shades):
            yield f'<div class="shade k{index}">'
            yield from _ramp(shade.ramp)
            yield f"{shade.drawing}</div>"
        yield "</div>"
    else:
        yield from _ramp(plot.ramp) if plot.ramp else ()
        yield plot.drawing
    yield f"<figcaption>{svg.escape(plot.says, LIMIT)}</figcaption></figure>"


def _ramp(ends: tuple[str, str]) -> Iterator[str]:
    swatches = "".join(f'<i class="swatch q{step}"></i>' for step in range(svg.STEPS))
    yield f'<p class="legend ramp"><span>{svg.escape(ends[0])}</span><span>{swatches}</span>'
    yield f"<span>{svg.escape(ends[1])}</span></p>"
