"""Print the demo's table: each measure with its chance level, its ceiling, and the reference run."""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.results.analysis import Analysis, Measure
from tieconv.demo.toy_settings import REFERENCE, REFERENCE_FLOORS

_PAIRS = ("E→U", "E→T", "U→T", "E→E'", "U→U'")


def render(analysis: Analysis) -> str:
    """Return a table of measures by pairs of tables, followed by the conclusions."""
    return "\n".join(_lines(analysis))


def _lines(analysis: Analysis) -> Iterator[str]:
    alignment = analysis.section("Alignment")
    assert alignment is not None
    measures = {measure.name: measure for measure in alignment.measures}
    names = list(dict.fromkeys(name.rsplit(" ", 1)[0] for name in measures))
    yield f"{'':14}" + "".join(f"{pair:>18}" for pair in _PAIRS)
    for name in names:
        yield f"{name:14}" + "".join(f"{_cell(measures[f'{name} {pair}']):>18}" for pair in _PAIRS)
        if name in REFERENCE:
            yield f"{'  reference':14}" + "".join(f"{cell:>18}" for cell in _reference(name))
    yield ""
    yield "E and U are the input and output table of the untied toy. E' and U' are of a second seed (the ceiling)."
    yield "T is the table of the tied toy. A figure in brackets is the chance level: the tokens are permuted."
    yield "The reference rows are from a larger toy, trained on natural text."
    yield ""
    yield from (section.sentence for section in analysis.sections if section.title in ("Alignment", "Training"))


def _reference(name: str) -> Iterator[str]:
    floors = REFERENCE_FLOORS.get(name, ())
    for index, value in enumerate(REFERENCE[name]):
        floor = f"[{floors[index]:+.3f}]" if index < len(floors) else ""
        yield f"{value:.3f} {floor:8}"


def _cell(measure: Measure) -> str:
    if measure.value is None or measure.floor is None:
        return "-"
    return f"{measure.value:.3f} [{measure.floor:+.3f}]"
