"""Print the demo's tables: each measure with its chance level and the reference run, and the effect of a ratio."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tieconv.checkpoint.results.analysis import Analysis, Measure, Section
from tieconv.demo.gradient_effect import GradientEffect
from tieconv.demo.seed_intervals import Interval, OverSeeds
from tieconv.demo.toy_settings import REFERENCE, REFERENCE_FLOORS

_PAIRS = ("E→U", "E→T", "U→T", "E→E'", "U→U'")
_ABREAST = 3  # ratios in one table, so that it fits 100 columns


def render(analysis: Analysis) -> str:
    """Return the answers, a table of measures by pairs of tables, and a table of the ratios' effects."""
    return "\n".join(_lines(analysis))


def _lines(analysis: Analysis) -> Iterator[str]:
    alignment = analysis.section("Alignment")
    assert alignment is not None
    answers = [section.sentence for section in analysis.sections if section.title in ("Alignment", "Training")]
    yield from answers
    yield ""
    yield from _alignment(alignment)
    yield ""
    yield "E and U are the input and output table of the untied toy. E' and U' are of a second seed (the ceiling)."
    yield "T is the table of the tied toy. The reference rows are from a larger toy, trained on natural text."
    if isinstance(alignment.detail, OverSeeds):
        yield f"±: half of Student's 95 % interval over {len(alignment.detail.seeds)} runs, each with its own seed."
        yield "chance: the tokens are permuted."
    else:
        yield "A figure in brackets is the chance level: the tokens are permuted."
    effects = [section for section in analysis.sections if isinstance(section.detail, GradientEffect)]
    for start in range(0, len(effects), _ABREAST):
        yield from _effects(effects[start : start + _ABREAST])


def _alignment(alignment: Section) -> Iterator[str]:
    measures = {measure.name: measure for measure in alignment.measures}
    names = list(dict.fromkeys(name.rsplit(" ", 1)[0] for name in measures))
    halves = alignment.detail.half_width if isinstance(alignment.detail, OverSeeds) else {}
    yield _row("", _PAIRS)
    for name in names:
        row = [measures[f"{name} {pair}"] for pair in _PAIRS]
        if halves:
            yield _row(name, [str(Interval(measure.value or 0.0, halves[measure.name])) for measure in row])
            yield _row("  chance", [f"{measure.floor or 0.0:.3f}" + " " * 7 for measure in row])
        else:
            yield _row(name, map(_cell, row))
        if name in REFERENCE:
            yield _row("  reference", _reference(name, not halves))


def _row(head: str, cells: Sequence[str] | Iterator[str]) -> str:
    return f"{head:14}" + "".join(f"{cell:>17}" for cell in cells)


def _reference(name: str, with_floors: bool) -> Iterator[str]:
    floors = REFERENCE_FLOORS.get(name, ())
    for index, value in enumerate(REFERENCE[name]):
        floor = f"[{floors[index]:+.3f}]" if with_floors and index < len(floors) else ""
        yield f"{value:.3f} {floor:{8 if with_floors else 6}}"


def _cell(measure: Measure) -> str:
    if measure.value is None or measure.floor is None:
        return "-"
    return f"{measure.value:.3f} [{measure.floor:+.3f}]"


def _effects(sections: Sequence[Section]) -> Iterator[str]:
    effects = [section.detail for section in sections if isinstance(section.detail, GradientEffect)]
    yield ""
    yield "Gradients of the tied table, scaled as input embedding:head. Brackets: change from 1:1."
    yield f"{'':20}{'1:1':>14}" + "".join(f"{effect.ratio!s:>23}" for effect in effects)
    for name, change in effects[0].changes.items():
        cells = [f"{effect.changes[name].scaled.mean:.3f} ({effect.changes[name].signed})" for effect in effects]
        yield f"{name:20}{change.unscaled!s:>14}" + "".join(f"{cell:>23}" for cell in cells)
    yield ""
    yield from (section.sentence for section in sections)
