"""Means over runs of several seeds, with their intervals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from math import sqrt
from statistics import fmean, stdev

from tieconv.checkpoint.results.analysis import Analysis, Detail, Headline, Measure, Section
from tieconv.checkpoint.value_type import record
from tieconv.demo.toy_analysis import BY_CONSTRUCTION, WHICH, RunOfToys, held_out, loss_sentence
from tieconv.demo.toy_settings import TIED, UNTIED
from tieconv.text import listed

STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""The 97.5 % quantile of Student's t for 1, 2, … degrees of freedom."""


@record
class Interval:
    """A mean over runs, and half the width of its 95 % interval, which is ``None`` for one run."""

    mean: float
    half: float | None

    def __str__(self) -> str:
        mean = f"{round(self.mean, 3) + 0.0:.3f}"  # + 0.0: never -0.000
        return mean if self.half is None else f"{mean} ±{self.half:.3f}"

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval lies on one side of 0."""
        return self.half is not None and abs(self.mean) > self.half


def interval(values: Sequence[float]) -> Interval:
    """Return the mean m of n values with its interval m ± t·s/√n.

    Here s is their standard deviation, and t is Student's quantile for n - 1 degrees of freedom.
    """
    count = len(values)
    half = STUDENT[count - 2] * stdev(values) / sqrt(count) if count > 1 else None
    return Interval(fmean(values), half)


@record
class OverSeeds(Detail):
    """The seeds of the runs, and half the width of the 95 % interval of each measure."""

    seeds: tuple[int, ...]
    half_width: dict[str, float]


def summary(out: str, runs: Sequence[RunOfToys], effects: Sequence[Section]) -> Analysis:
    """Return the analysis of all runs: each measure as a mean with its interval."""
    alignment = _averaged("Alignment", _shapes(runs), runs, [run.alignment for run in runs])
    training = _averaged("Training", "", runs, [run.training for run in runs])
    answer = Headline(WHICH, alignment.sentence, alignment.certainty)
    sections = (alignment, *effects, _with_losses(training))
    return Analysis(out, sections, BY_CONSTRUCTION, alignment.sentence, answer)


def _shapes(runs: Sequence[RunOfToys]) -> str:
    shapes = Counter(run.shape for run in runs)
    if len(shapes) == 1 and (shape := next(iter(shapes))) in ("output", "input"):
        return f"The tied table is {shape}-shaped in each of {len(runs)} runs."
    votes = listed(f"{shape} in {number}" for shape, number in shapes.most_common())
    return f"The {len(runs)} runs do not give one role: {votes}."


def _averaged(title: str, sentence: str, runs: Sequence[RunOfToys], sections: Sequence[Section]) -> Section:
    seeds = tuple(run.seed for run in runs)
    measures = tuple(_mean_measures(sections))
    halves = {
        measures[index].name: half
        for index, of_runs in enumerate(zip(*(section.measures for section in sections), strict=True))
        if (half := interval(_values(of_runs)).half) is not None
    }
    certainty = f"measured in {len(runs)} runs, each with its own text and weights"
    return Section(title, sentence, measures, {}, OverSeeds(seeds, halves), certainty)


def _mean_measures(sections: Sequence[Section]) -> Iterator[Measure]:
    """Yield each measure with the means of its value, floor and ceiling. ``n`` is the number of runs."""
    for of_runs in zip(*(section.measures for section in sections), strict=True):
        first = of_runs[0]
        value = interval(_values(of_runs))
        floors = [measure.floor for measure in of_runs if measure.floor is not None]
        tops = [measure.ceiling for measure in of_runs if measure.ceiling is not None]
        yield Measure(
            first.name,
            value.mean,
            fmean(floors) if floors else None,
            fmean(tops) if tops else None,
            len(of_runs),
            first.unit,
            f"{first.says}; mean over {len(of_runs)} runs ± {value.half:.3f}",
        )


def _values(measures: Sequence[Measure]) -> list[float]:
    values = [measure.value for measure in measures if measure.value is not None]
    assert len(values) == len(measures)  # toys have one width, so every measure is defined
    return values


def _with_losses(training: Section) -> Section:
    measures = {measure.name: measure for measure in training.measures}
    tied, untied = measures[held_out(TIED.name)], measures[held_out(UNTIED.name)]
    sentence = loss_sentence(tied.value or 0.0, untied.value or 0.0, tied.floor or 0.0)
    return Section(training.title, sentence, training.measures, {}, training.detail, training.certainty)
