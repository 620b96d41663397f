"""The effect of scaled gradients on the tied table: the change of each measure, with its interval over seeds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

from tieconv.checkpoint.results.analysis import Detail, Measure, Section
from tieconv.checkpoint.value_type import record
from tieconv.demo.gradient_ratio import GradientRatio
from tieconv.demo.seed_intervals import Interval, interval
from tieconv.demo.toy_analysis import RunOfToys, held_out
from tieconv.demo.toy_settings import TIED, scaled

DECIDING = ("knn", "rsa", "norms")
"""The measures that judge the role of a table."""

LOSS = "held-out loss"


@record
class Change:
    """A measure with the ratio 1:1 and with a scaled one, and the change. Both toys of a run have equal first weights.

    ``floors`` and ``ceilings`` are those of the scaled toy in each run.
    """

    unscaled: Interval
    scaled: Interval
    difference: Interval
    floors: tuple[float, ...] = ()
    ceilings: tuple[float, ...] = ()
    unit: str = ""

    @property
    def signed(self) -> str:
        """The change with its sign and, after several runs, half the width of its interval."""
        return f"+{self.difference}" if round(self.difference.mean, 3) >= 0 else str(self.difference)

    def to_dict(self) -> dict[str, object]:
        """Return the entry of the section's detail."""
        sides = {"unscaled": self.unscaled, "scaled": self.scaled, "difference": self.difference}
        return {name: {"mean": side.mean, "half_width": side.half} for name, side in sides.items()}


@record
class GradientEffect(Detail):
    """The factors of the gradients, the seeds of the runs, and the change of each measure by its name."""

    ratio: GradientRatio
    seeds: tuple[int, ...]
    changes: Mapping[str, Change]

    def to_dict(self) -> dict[str, object]:
        return {
            "input_embedding": self.ratio.embedding,
            "output_head": self.ratio.head,
            "seeds": list(self.seeds),
            "changes": {name: change.to_dict() for name, change in self.changes.items()},
        }


def gradient_effect(ratio: GradientRatio, runs: Sequence[RunOfToys]) -> Section:
    """Return the change of each measure in all runs."""
    changes = dict(_changes(ratio, runs))
    detail = GradientEffect(ratio, tuple(run.seed for run in runs), changes)
    measures = (_measure(name, change, len(runs)) for name, change in changes.items())
    return Section(f"Gradients {ratio}", _sentence(ratio, changes, len(runs)), tuple(measures), {}, detail)


def lead(name: str) -> str:
    """Return the name of the figure that says how far U leads E in a measure."""
    return f"{name} U→T minus E→T"


def _changes(ratio: GradientRatio, runs: Sequence[RunOfToys]) -> Iterator[tuple[str, Change]]:
    before, after = ([*sides] for sides in zip(*((run.alignment, run.scaled[ratio]) for run in runs), strict=True))
    for name in (measure.name for measure in before[0].measures if measure.name.endswith((" U→T", " E→T"))):
        yield name, _change(_named(before, name), _named(after, name))
    for name in DECIDING:
        leads = ([_lead(section, name) for section in side] for side in (before, after))
        yield lead(name), _paired(*leads)
    training = [run.training for run in runs]
    yield LOSS, _change(_named(training, held_out(TIED.name)), _named(training, held_out(scaled(ratio).name)))


def _named(sections: Sequence[Section], name: str) -> list[Measure]:
    """Return the measure ``name`` of each section."""
    return [measure for section in sections for measure in section.measures if measure.name == name]


def _lead(section: Section, name: str) -> float:
    head, embedding = (_value(_named([section], f"{name} {pair}")[0]) for pair in ("U→T", "E→T"))
    return head - embedding


def _value(measure: Measure) -> float:
    assert measure.value is not None  # toys have one width, so every measure is defined
    return measure.value


def _change(before: Sequence[Measure], after: Sequence[Measure]) -> Change:
    floors = tuple(measure.floor for measure in after if measure.floor is not None)
    ceilings = tuple(measure.ceiling for measure in after if measure.ceiling is not None)
    change = _paired([_value(measure) for measure in before], [_value(measure) for measure in after])
    return Change(change.unscaled, change.scaled, change.difference, floors, ceilings, after[0].unit)


def _paired(before: Sequence[float], after: Sequence[float]) -> Change:
    differences = [changed - unchanged for unchanged, changed in zip(before, after, strict=True)]
    return Change(interval(before), interval(after), interval(differences))


def _measure(name: str, change: Change, runs: int) -> Measure:
    floor, ceiling = (fmean(values) if values else None for values in (change.floors, change.ceilings))
    says = f"changed by {change.signed} from {change.unscaled} at 1:1"
    return Measure(name, change.scaled.mean, floor, ceiling, runs, change.unit, says)


def _sentence(ratio: GradientRatio, changes: Mapping[str, Change], runs: int) -> str:
    leads = {name: changes[lead(name)].difference for name in DECIDING}
    texts = ", ".join(f"{name} {changes[lead(name)].signed}" for name in DECIDING)
    up, down = (
        [name for name, change in leads.items() if change.excludes_zero and (change.mean > 0) is rises]
        for rises in (True, False)
    )
    if runs == 1:
        answer = "One run gives no interval, so each change may be chance"
    elif len(down) > 1 and not up:
        answer = f"The gradients {ratio} move the tied table away from the output role"
    elif len(up) > 1 and not down:
        answer = f"The gradients {ratio} move the tied table towards the output role"
    else:
        answer = f"The gradients {ratio} move the tied table in no clear direction"
    return f"{answer}. The lead of U over E changes: {texts}. The held-out loss changes by {changes[LOSS].signed} nats."
