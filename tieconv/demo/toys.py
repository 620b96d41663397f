"""Train the toys, write them, read them back, and align their tables. Imports numpy, and torch to train."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from tieconv.analysis.alignment import align_models, opened, table_of
from tieconv.analysis.alignment_measures import plane
from tieconv.analysis.subject import Subject
from tieconv.analysis.tables import Table as StoredTable
from tieconv.analysis.token_tables import Table
from tieconv.checkpoint.results.analysis import Analysis, Headline, Measure, Section
from tieconv.checkpoint.value_type import record
from tieconv.demo import toy_settings
from tieconv.demo.toy_settings import REFERENCE, REFERENCE_FLOORS, SECOND, TIED, UNTIED, VOCABULARY, Text, Toy, generate
from tieconv.errors import DestinationError, RefusedError
from tieconv.execute.publish import interrupts, owning, publish_new
from tieconv.execute.staging import Staging
from tieconv.install import install_command
from tieconv.reference.packages import need, quiet
from tieconv.reporters.html.analyze_page import render_analysis as render
from tieconv.sources.user_files import write_text
from tieconv.text import OUT, Hint, option, shown


def run(
    out: Path,
    *,
    steps: int = toy_settings.STEPS,
    seed: int = 0,
    done: Callable[[int, int], None] = lambda done, total: None,
) -> Analysis:
    """Write the toys and a report to the directory ``out``, completely or not at all.

    ``done`` is called after each step with the number of steps so far and of all. Raises `RefusedError` if torch is
    missing, and `DestinationError` if ``out`` exists or cannot be made.
    """
    missing = [name for name in ("torch", "transformers", "safetensors") if find_spec(name) is None]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        problem = f"the demo needs {' and '.join(missing)}, which {verb} not installed"
        raise RefusedError(problem, install_command("torch"))
    if os.path.lexists(out):
        problem = f"{shown(out)} already exists"
        raise DestinationError(problem, Hint("give a directory that does not exist: ", option(out=OUT)))
    ticks, total = count(1), len(toy_settings.TOYS) * steps

    def step_done() -> None:
        done(next(ticks), total)

    def write(directory: Path) -> Analysis:
        text = generate(steps, seed)
        losses = {toy.name: _train(toy, text, steps, seed, directory, step_done) for toy in toy_settings.TOYS}
        analysis = analyze_toys(out, directory, text, losses)
        write_text(str(directory / "report.json"), f"{analysis}\n")
        write_text(str(directory / "report.html"), render(analysis))
        return analysis

    return _whole(out, write)


def _whole(out: Path, write: Callable[[Path], Analysis]) -> Analysis:
    """Write to a hidden directory beside ``out``, and rename it at the end."""
    final = Path(os.path.realpath(out.absolute().parent), out.name)
    if not final.parent.is_dir():
        problem = f"{shown(out)} cannot be made: no such file or directory"
        raise DestinationError(problem, Hint("give another directory with ", option("out")))

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

    trained = train(text, tied=toy.tied, seed=toy.seed(seed), steps=steps, step_done=step_done)
    save(trained.model, text.words, directory / toy.name)
    return Losses(trained.losses, trained.held_out)


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


@record
class Losses:
    """The training loss of each step, and the loss on the held-out text, in nats per word."""

    training: tuple[float, ...]
    held_out: float


def analyze_toys(out: Path, directory: Path, text: Text, losses: Mapping[str, Losses]) -> Analysis:
    """Analyze the files in ``directory``, which are published as ``out``."""
    with ExitStack() as stack:

        def toy(name: str) -> Subject:
            return _named(stack.enter_context(opened(directory / name)), str(out / name))

        tied, untied, second = toy(TIED.name), toy(UNTIED.name), toy(SECOND.name)
        alignment = align_models(tied, untied, second)
        maps = [_map(tied, tied.embed, "tied table", text)]
        if untied.head is not None:
            maps.append(_map(untied, untied.embed, "untied input embedding", text))
            maps.append(_map(untied, untied.head, "untied output embedding", text))
    answer = Headline(WHICH, alignment.sentence, alignment.certainty)
    sections = (alignment, *maps, _training(text, losses))
    return Analysis(str(out), sections, "tied by construction", alignment.sentence, answer)


def _named(subject: Subject, name: str) -> Subject:
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


def _training(text: Text, losses: Mapping[str, Losses]) -> Section:
    """Return the toys' losses. The chance figure is the loss of a model that knows only word frequencies."""
    tied, untied = losses[TIED.name].held_out, losses[UNTIED.name].held_out
    return Section(
        "Training",
        f"On held-out text the tied toy loses {tied:.2f} nats per word and the untied toy {untied:.2f}. "
        f"Word frequencies alone give {text.unigram:.2f}.",
        tuple(_held_out(text, losses)),
        {f"loss {name}": _smooth(toy.training) for name, toy in losses.items()},
        {"words": len(text.words), "trained_on": int(text.train.size), "rows_of_padding": VOCABULARY - len(text.words)},
    )


def _held_out(text: Text, losses: Mapping[str, Losses]) -> Iterator[Measure]:
    says = "lower is better; chance is the loss of a model that knows only word frequencies"
    n = text.held_out[:, 1:].size
    for name, toy in losses.items():
        yield Measure(held_out(name), toy.held_out, text.unigram, None, n, "nats per word", says)


def _smooth(losses: tuple[float, ...], points: int = 200) -> tuple[float, ...]:
    return tuple(float(part.mean()) for part in np.array_split(np.array(losses), min(points, len(losses))))


_PAIRS = ("E→U", "E→T", "U→T", "E→E'", "U→U'")


def render_text(analysis: Analysis) -> str:
    """Return the answers, and a table of measures by pairs of tables."""
    return "\n".join(_lines(analysis))


def _lines(analysis: Analysis) -> Iterator[str]:
    alignment = analysis.section("Alignment")
    assert alignment is not None
    answers = [section.sentence for section in analysis.sections if section.title in ("Alignment", "Training")]
    yield from answers
    yield ""
    measures = {measure.name: measure for measure in alignment.measures}
    names = list(dict.fromkeys(name.rsplit(" ", 1)[0] for name in measures))
    yield _row("", _PAIRS)
    for name in names:
        yield _row(name, [_cell(measures[f"{name} {pair}"]) for pair in _PAIRS])
        if name in REFERENCE:
            yield _row("  reference", _reference(name))
    yield ""
    yield "E and U are the input and output table of the untied toy. E' and U' are of a second seed (the ceiling)."
    yield "T is the table of the tied toy. The reference rows are from a larger toy, trained on natural text."
    yield "A figure in brackets is the chance level: the tokens are permuted."


def _row(head: str, cells: Iterable[str]) -> str:
    return f"{head:14}" + "".join(f"{cell:>17}" for cell in cells)


def _reference(name: str) -> Iterator[str]:
    floors = REFERENCE_FLOORS.get(name, ())
    for index, value in enumerate(REFERENCE[name]):
        floor = f"[{floors[index]:+.3f}]" if index < len(floors) else ""
        yield f"{value:.3f} {floor:8}"


def _cell(measure: Measure) -> str:
    if measure.value is None or measure.floor is None:
        return "-"
    return f"{measure.value:.3f} [{measure.floor:+.3f}]"
