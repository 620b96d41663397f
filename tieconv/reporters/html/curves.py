"""Draw the figures of revisions as curves, each with its floor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isfinite

from tieconv.checkpoint.results.evolution import Evolution
from tieconv.checkpoint.value_type import record
from tieconv.reporters.html.bars import NAMES
from tieconv.reporters.html.scatter import Plot, span
from tieconv.reporters.html.svg import Frame, Point

_ROLES = {"E": ("c0", "input embedding E"), "U": ("c1", "head U"), "T": ("c2", "tied table T")}
_PAIRS = {"E→U": ("c3", "E and U"), "E→T": ("c0", "untied E and T"), "U→T": ("c1", "untied U and T")}
_FLOORS = (("chance", "chance, in the same colour"),)
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


def curves(evolution: Evolution) -> list[Plot]:
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
        yield _Group(f"Agreement: {NAMES[name]}", "", f"{says} Only a curve above its floor is evidence.", measures)
    measures = {f"mean norm {role}": style for role, style in _ROLES.items()}
    yield _Group("Length of the rows", "mean ‖row‖", "The mean Euclidean length of the rows.", measures)


def _plot(evolution: Evolution, group: _Group) -> Iterator[Plot]:
    lines = {name: _points(evolution, name) for name in group.measures}
    lines = {name: points for name, points in lines.items() if points[0]}
    if not lines:
        return
    steps = [step for step, _ in _places(evolution)]
    heights = [height for values, floors in lines.values() for _, height in (*values, *floors)]
    named = any(revision.step is None for revision in evolution.revisions)
    ticks = _names(evolution) if named else None
    frame = Frame(
        group.heading,
        (min(steps), max(steps)),
        _roomy(heights),
        "revisions in their order" if named else "training step",
        group.unit,
        ticks,
    )
    for name, (values, floors) in lines.items():
        style = group.measures[name][0]
        frame.line(values, style)
        frame.dots(values, style, few=True)
        if floors:
            frame.line(floors, f"{style} chance")
    legend = tuple(group.measures[name] for name in lines)
    marks = _FLOORS if any(floors for _, floors in lines.values()) else ()
    yield Plot(group.heading, frame.svg(), group.says, legend, marks=marks)


def _roomy(heights: Sequence[float]) -> Point:
    """Return the range of the values with some room, so that no curve lies on the axis."""
    low, high = span(heights)
    return low - 0.04 * (high - low), high + 0.04 * (high - low)


def _places(evolution: Evolution) -> Sequence[tuple[float, int]]:
    """Return the position of each revision on the axis, with its number: its step, or its number."""
    return [
        (float(number if revision.step is None else revision.step), number)
        for number, revision in enumerate(evolution.revisions)
    ]


def _points(evolution: Evolution, name: str) -> tuple[list[Point], list[Point]]:
    """Return the points of a measure and of its floor. Revisions without a figure have no point."""
    values: list[Point] = []
    floors: list[Point] = []
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
    return [
        (0.0, evolution.revisions[0].name[:20]),
        (float(final), evolution.revisions[final].name[:20]),
    ]
