"""Bars of the alignment: the tied table against either role, with marks for chance and for the ceiling."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isfinite

from tieconv.checkpoint.results.analysis import Measure
from tieconv.reporters.html.svg import WIDTH, escape, figure, svg

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
