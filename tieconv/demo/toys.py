"""Train the toys, write them, read them back, and align their tables. Imports numpy, and torch to train."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from tieconv.analysis.alignment.models import align_models, opened, table_of
from tieconv.analysis.alignment.plane import plane
from tieconv.analysis.alignment.token_tables import Table
from tieconv.analysis.model.subject import Subject
from tieconv.analysis.model.tables import Table as StoredTable
from tieconv.checkpoint.results.analysis import Analysis, Detail, Measure, Section
from tieconv.checkpoint.value_type import record
from tieconv.demo import toy_settings
from tieconv.demo.generated_text import Text, generate
from tieconv.errors import DestinationError, RefusedError
from tieconv.execute.publish.interrupts import interrupts
from tieconv.execute.publish.owned import owning
from tieconv.execute.publish.swap import publish_new
from tieconv.execute.staging import Staging
from tieconv.install import install_command
from tieconv.reporters.html.analyze_page import render
from tieconv.text import shown

_NEEDED = ("torch", "transformers", "safetensors")


@record
class TrainingText(Detail):
    """The number of words, of training tokens, and of table rows that no word uses."""

    words: int
    trained_on: int
    rows_of_padding: int


def run(
    out: Path, *, steps: int = toy_settings.STEPS, seed: int = 0, step_done: Callable[[], None] = lambda: None
) -> Analysis:
    """Write three toys and a report to the directory ``out``, completely or not at all.

    ``step_done`` is called after each step: three times ``steps`` in all. Raises `RefusedError` if torch is missing,
    and `DestinationError` if ``out`` exists or cannot be made.
    """
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        raise RefusedError(
            f"the demo needs {' and '.join(missing)}, which {verb} not installed", install_command("torch")
        )
    if os.path.lexists(out):
        raise DestinationError(f"{shown(out)} already exists", "give a directory that does not exist: -o OUT")
    text = generate(steps, seed)

    def write(directory: Path) -> Analysis:
        losses = {name: _train(name, text, steps, directory, step_done) for name in toy_settings.MODELS}
        analysis = _analysis(out, directory, text, losses)
        (directory / "report.json").write_text(f"{analysis}\n", "utf-8")
        (directory / "report.html").write_text(render(analysis), "utf-8")
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


def _train(
    name: str, text: Text, steps: int, directory: Path, step_done: Callable[[], None]
) -> tuple[tuple[float, ...], float]:
    from tieconv.demo.checkpoint import save
    from tieconv.demo.train import train

    tied, seed = toy_settings.MODELS[name]
    trained = train(text, tied=tied, seed=seed, steps=steps, step_done=step_done)
    save(trained.model, text.words, directory / name)
    return trained.losses, trained.held_out


def _analysis(out: Path, directory: Path, text: Text, losses: dict[str, tuple[tuple[float, ...], float]]) -> Analysis:
    """Analyze the files as they were written."""
    with ExitStack() as stack:
        tied, untied, second = (
            _named(stack.enter_context(opened(directory / name)), str(out / name)) for name in toy_settings.MODELS
        )
        alignment = align_models(tied, untied, second)
        maps = [_map(tied, tied.embed, "tied table", text)]
        if untied.head is not None:
            maps.append(_map(untied, untied.embed, "untied input embedding", text))
            maps.append(_map(untied, untied.head, "untied output embedding", text))
    return Analysis(str(out), (alignment, *maps, _training(text, losses)), "tied by construction", alignment.sentence)


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


def _training(text: Text, losses: dict[str, tuple[tuple[float, ...], float]]) -> Section:
    """Return the toys' losses. The chance figure is the loss of a model that knows only word frequencies."""
    chance = text.unigram
    measures = tuple(
        Measure(
            f"held-out loss {name}",
            held_out,
            chance,
            None,
            text.held_out[:, 1:].size,
            "nats per word",
            "lower is better; chance is the loss of a model that knows only word frequencies",
        )
        for name, (_, held_out) in losses.items()
    )
    return Section(
        "Training",
        f"On held-out text the tied toy loses {losses['tied'][1]:.2f} nats per word and the untied toy "
        f"{losses['untied'][1]:.2f}. Word frequencies alone give {chance:.2f}.",
        measures,
        {f"loss {name}": _smooth(curve) for name, (curve, _) in losses.items()},
        TrainingText(len(text.words), int(text.train.size), toy_settings.VOCABULARY - len(text.words)),
    )


def _smooth(losses: tuple[float, ...], points: int = 200) -> tuple[float, ...]:
    """Return at most ``points`` means of consecutive steps."""
    return tuple(float(part.mean()) for part in np.array_split(np.array(losses), min(points, len(losses))))
