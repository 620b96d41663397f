"""Train the toys, write them, read them back, and align their tables. Imports numpy, and torch to train."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from importlib.util import find_spec
from itertools import count
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np

from tieconv.analysis.alignment import AlignmentDetail, align_models, opened, table_of
from tieconv.analysis.alignment_measures import plane
from tieconv.analysis.subject import Subject
from tieconv.analysis.tables import Table as StoredTable
from tieconv.analysis.token_tables import Table
from tieconv.checkpoint.results.analysis import Analysis, Detail, Headline, Measure, Section
from tieconv.checkpoint.value_type import record
from tieconv.demo import toy_settings
from tieconv.demo.toy_settings import (
    REFERENCE,
    REFERENCE_FLOORS,
    SECOND,
    TIED,
    UNTIED,
    VOCABULARY,
    GradientRatio,
    Text,
    Toy,
    generate,
    scaled,
)
from tieconv.errors import DestinationError, RefusedError
from tieconv.execute.publish import interrupts, owning, publish_new
from tieconv.execute.staging import Staging
from tieconv.install import install_command
from tieconv.reference.packages import need, quiet
from tieconv.reporters.html.analyze_page import render_analysis as render
from tieconv.sources.user_files import write_text
from tieconv.text import listed, shown

_NEEDED = ("torch", "transformers", "safetensors")


def run(
    out: Path,
    *,
    steps: int = toy_settings.STEPS,
    seed: int = 0,
    seeds: int = 1,
    ratios: Sequence[GradientRatio] = (),
    done: Callable[[int, int], None] = lambda done, total: None,
) -> Analysis:
    """Write the toys and a report to the directory ``out``, completely or not at all.

    There are three toys, and a tied one for each of ``ratios``. With several ``seeds``, each seed has its own
    directory below ``out``. The report in ``out`` then has means and intervals. ``done`` is called after
    each step with the number of steps so far and of all. Raises `RefusedError` if torch is missing, and
    `DestinationError` if ``out`` exists or cannot be made.
    """
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        raise RefusedError(
            f"the demo needs {' and '.join(missing)}, which {verb} not installed", install_command("torch")
        )
    if os.path.lexists(out):
        raise DestinationError(f"{shown(out)} already exists", "give a directory that does not exist: -o OUT")
    toys = (*toy_settings.TOYS, *map(toy_settings.scaled, dict.fromkeys(ratios)))
    ticks, total = count(1), seeds * len(toys) * steps

    def step_done() -> None:
        done(next(ticks), total)

    def one_run(final: Path, directory: Path, number: int) -> RunOfToys:
        text = generate(steps, number)
        losses = {toy.name: _train(toy, text, steps, number, directory, step_done) for toy in toys}
        return analyze_toys(final, directory, number, text, losses, [*dict.fromkeys(ratios)])

    def write(directory: Path) -> Analysis:
        if seeds == 1:
            single = one_run(out, directory, seed)
            effects = (gradient_effect(ratio, [single]) for ratio in single.scaled)
            analysis = replace(single.analysis, sections=(*single.analysis.sections, *effects))
        else:
            runs = []
            for number in range(seed, seed + seeds):
                name = f"seed-{number}"
                (directory / name).mkdir()
                runs.append(one_run(out / name, directory / name, number))
                _report(directory / name, runs[-1].analysis)
            analysis = summary(str(out), runs, [gradient_effect(ratio, runs) for ratio in runs[0].scaled])
        _report(directory, analysis)
        return analysis

    return _whole(out, write)


def _whole(out: Path, write: Callable[[Path], Analysis]) -> Analysis:
    """Write to a hidden directory beside ``out``, and rename it at the end."""
    final = Path(os.path.realpath(out.absolute().parent), out.name)
    if not final.parent.is_dir():
        raise DestinationError(
            f"{shown(out)} cannot be made: no such file or directory", "give another directory with -o"
        )

    def publish(staging: Staging) -> Analysis:
        os.mkdir(staging.new)
        made = write(staging.new)
        with signals.shielded():
            staging.check()
            publish_new(staging.new, final)
        return made

    with interrupts() as signals:
        return owning(final, signals, publish)


def _train(toy: Toy, text: Text, steps: int, seed: int, directory: Path, step_done: Callable[[], None]) -> Losses:
    from tieconv.demo.train import train

    trained = train(text, tied=toy.tied, seed=toy.seed(seed), steps=steps, ratio=toy.ratio, step_done=step_done)
    save(trained.model, text.words, directory / toy.name)
    return Losses(trained.losses, trained.held_out)


def _report(directory: Path, analysis: Analysis) -> None:
    write_text(str(directory / "report.json"), f"{analysis}\n")
    write_text(str(directory / "report.html"), render(analysis))


# Write a toy as a directory that every loader reads: weights, config, tokenizer, model card.

CARD = """\
---
license: apache-2.0
library_name: transformers
tags: [toy, weight-tying]
---
`tieconv demo` trained this toy ({kind}) in about a minute.
The training text is generated from made-up words.
tieconv makes the text, the words and the weights itself. Its licence (Apache-2.0) applies to them.
"""


def save(model: Any, words: tuple[str, ...], directory: Path) -> None:
    """Write the model into ``directory``, which must not exist yet."""
    directory.mkdir()
    with quiet(need("transformers", "torch", "the demo")):
        model.save_pretrained(directory)
    write_text(str(directory / "tokenizer.json"), json.dumps(tokenizer(words), indent=1) + "\n")
    kind = "tied" if model.config.tie_word_embeddings else "untied"
    write_text(str(directory / "tokenizer_config.json"), '{"tokenizer_class": "PreTrainedTokenizerFast"}\n')
    write_text(str(directory / "README.md"), CARD.format(kind=kind))


def tokenizer(words: tuple[str, ...]) -> dict[str, object]:
    """Return a word-level tokenizer.json. A word's id is its index; an unknown word gets the rarest word's id."""
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": {word: row for row, word in enumerate(words)}, "unk_token": words[-1]},
    }


# Analyze the toys of one run as they were written. Imports numpy.

WHICH = "Which table of an untied toy does the table of a tied toy resemble?"
BY_CONSTRUCTION = "tied by construction"


@record
class Losses:
    """The training loss of each step, and the loss on the held-out text, in nats per word."""

    training: tuple[float, ...]
    held_out: float


@record
class TrainingText(Detail):
    """The number of words, of training tokens, and of table rows that no word uses."""

    words: int
    trained_on: int
    rows_of_padding: int


@record
class RunOfToys:
    """The toys of one seed: the analysis, and the alignment of each tied table with scaled gradients."""

    seed: int
    analysis: Analysis
    scaled: Mapping[GradientRatio, Section]

    @property
    def alignment(self) -> Section:
        """The alignment of the ordinary tied table."""
        return self.analysis.sections[0]

    @property
    def training(self) -> Section:
        """The losses of all toys."""
        return self.analysis.sections[-1]

    @property
    def shape(self) -> str:
        """The role of the ordinary tied table."""
        detail = self.alignment.detail
        assert isinstance(detail, AlignmentDetail)
        return detail.shape


def analyze_toys(
    out: Path, directory: Path, seed: int, text: Text, losses: Mapping[str, Losses], ratios: Sequence[GradientRatio]
) -> RunOfToys:
    """Analyze the files in ``directory``, which are published as ``out``."""
    with ExitStack() as stack:

        def toy(name: str) -> Subject:
            return _named(stack.enter_context(opened(directory / name)), str(out / name))

        tied, untied, second = toy(TIED.name), toy(UNTIED.name), toy(SECOND.name)
        alignment = align_models(tied, untied, second)
        aligned = {ratio: align_models(toy(scaled(ratio).name), untied, second) for ratio in ratios}
        maps = [_map(tied, tied.embed, "tied table", text)]
        if untied.head is not None:
            maps.append(_map(untied, untied.embed, "untied input embedding", text))
            maps.append(_map(untied, untied.head, "untied output embedding", text))
    answer = Headline(WHICH, alignment.sentence, alignment.certainty)
    sections = (alignment, *maps, _training(text, losses))
    return RunOfToys(seed, Analysis(str(out), sections, BY_CONSTRUCTION, alignment.sentence, answer), aligned)


def _named(subject: Subject, name: str) -> Subject:
    """Return the model under its final name."""
    evidence = subject.evidence
    return replace(subject, evidence=replace(evidence, checkpoint=replace(evidence.checkpoint, source=name)))


def _map(subject: Subject, stored: StoredTable, role: str, text: Text) -> Section:
    """Return a map of the words in a table, coloured by how often they occur."""
    chances = (text.counts + 0.5) / (text.counts + 0.5).sum()
    table = table_of(subject, stored, role)
    words = Table(role, len(text.words), table.width, table.read)
    section = plane(words, {"log p": np.log(chances)}, f"Map: {role}")
    assert section is not None  # a table of the demo has hundreds of rows
    return section


def held_out(toy: str) -> str:
    """Return the name of the measure of a toy's loss on the held-out text."""
    return f"held-out loss {toy}"


def loss_sentence(tied: float, untied: float, chance: float) -> str:
    """Return the sentence on the held-out losses."""
    return (
        f"On held-out text the tied toy loses {tied:.2f} nats per word and the untied toy {untied:.2f}. "
        f"Word frequencies alone give {chance:.2f}."
    )


def _training(text: Text, losses: Mapping[str, Losses]) -> Section:
    """Return the toys' losses. The chance figure is the loss of a model that knows only word frequencies."""
    return Section(
        "Training",
        loss_sentence(losses[TIED.name].held_out, losses[UNTIED.name].held_out, text.unigram),
        tuple(_held_out(text, losses)),
        {f"loss {name}": _smooth(toy.training) for name, toy in losses.items()},
        TrainingText(len(text.words), int(text.train.size), VOCABULARY - len(text.words)),
    )


def _held_out(text: Text, losses: Mapping[str, Losses]) -> Iterator[Measure]:
    says = "lower is better; chance is the loss of a model that knows only word frequencies"
    n = text.held_out[:, 1:].size
    for name, toy in losses.items():
        yield Measure(held_out(name), toy.held_out, text.unigram, None, n, "nats per word", says)


def _smooth(losses: tuple[float, ...], points: int = 200) -> tuple[float, ...]:
    """Return at most ``points`` means of consecutive steps."""
    return tuple(float(part.mean()) for part in np.array_split(np.array(losses), min(points, len(losses))))


# Means over runs of several seeds, with their intervals.

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


# The effect of scaled gradients on the tied table: the change of each measure, with its interval over seeds.

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
        yield name, _change(_effect_named(before, name), _effect_named(after, name))
    for name in DECIDING:
        leads = ([_lead(section, name) for section in side] for side in (before, after))
        yield lead(name), _paired(*leads)
    training = [run.training for run in runs]
    yield (
        LOSS,
        _change(_effect_named(training, held_out(TIED.name)), _effect_named(training, held_out(scaled(ratio).name))),
    )


def _effect_named(sections: Sequence[Section], name: str) -> list[Measure]:
    """Return the measure ``name`` of each section."""
    return [measure for section in sections for measure in section.measures if measure.name == name]


def _lead(section: Section, name: str) -> float:
    head, embedding = (_value(_effect_named([section], f"{name} {pair}")[0]) for pair in ("U→T", "E→T"))
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


_PAIRS = ("E→U", "E→T", "U→T", "E→E'", "U→U'")
_ABREAST = 3  # ratios in one table, so that it fits 100 columns


def render_text(analysis: Analysis) -> str:
    """Return the answers, a table of measures by pairs of tables, and a table of the ratios' effects."""
    return "\n".join(_lines(analysis))


def _lines(analysis: Analysis) -> Iterator[str]:
    alignment = analysis.section("Alignment")
    assert alignment is not None
    answers = [section.sentence for section in analysis.sections if section.title in ("Alignment", "Training")]
    yield from answers
    yield ""
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
