"""Train the toys, write them, read them back, and align their tables. Imports numpy, and torch to train."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

from tieconv.checkpoint.results.analysis import Analysis
from tieconv.demo import toy_settings
from tieconv.demo.toy_analysis import Losses, RunOfToys, analyze_toys, gradient_effect, summary
from tieconv.demo.toy_settings import GradientRatio, Text, Toy, generate
from tieconv.errors import DestinationError, RefusedError
from tieconv.execute.publish import interrupts, owning, publish_new
from tieconv.execute.staging import Staging
from tieconv.install import install_command
from tieconv.reference.packages import need, quiet
from tieconv.reporters.html.analyze_page import render_analysis as render
from tieconv.sources.user_files import write_text
from tieconv.text import shown

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
