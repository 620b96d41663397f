"""Analyze the toys of one run as they were written. Imports numpy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np

from tieconv.analysis.alignment.compare import AlignmentDetail, align_models, opened, table_of
from tieconv.analysis.alignment.measures import plane
from tieconv.analysis.alignment.token_tables import Table
from tieconv.analysis.model.subject import Subject
from tieconv.analysis.model.tables import Table as StoredTable
from tieconv.checkpoint.results.analysis import Analysis, Detail, Headline, Measure, Section
from tieconv.checkpoint.value_type import record
from tieconv.demo.generated_text import Text
from tieconv.demo.gradient_ratio import GradientRatio
from tieconv.demo.toy_settings import SECOND, TIED, UNTIED, VOCABULARY, scaled

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
