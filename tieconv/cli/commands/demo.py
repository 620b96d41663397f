"""`tieconv demo`."""

from __future__ import annotations

from pathlib import Path

import click

from tieconv.cli.options import common_options, json_option
from tieconv.cli.progress import count_progress
from tieconv.cli.screen import say
from tieconv.cli.streams import echo
from tieconv.text import path_word


@click.command("demo")
@click.option(
    "-o",
    "--output",
    type=click.Path(),
    metavar="OUT",
    default="tieconv-demo",
    show_default=True,
    help="Write the models and the report to OUT, which must not exist.",
)
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    default=1000,
    show_default=True,
    help="Training steps for each model.",
)
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the text and the weights."
)
@click.option(
    "--seeds",
    type=click.IntRange(1, 10),
    default=1,
    show_default=True,
    help="Repeat with this number of seeds, and report means and 95 % intervals.",
)
@click.option(
    "--gradient-ratio",
    "gradient_ratios",
    multiple=True,
    metavar="EMBEDDING:HEAD",
    help="Also train a tied model whose two gradients are scaled by these factors, such as 5:1. Repeatable.",
)
@json_option
@common_options
def command(output: str, steps: int, seed: int, seeds: int, gradient_ratios: tuple[str, ...], as_json: bool) -> None:
    """Train a small model tied and untied, and show what tying changes.

    Takes two minutes on one core and needs tieconv[torch]. Writes three models (tied, untied, and untied with another
    seed), report.html and report.json. Every other command reads these models. Prints each measure with its floor and
    ceiling.

    The gradient of a tied table is a sum. One part belongs to its use as input embedding, one to its use as head. With
    --gradient-ratio, the demo scales both and reports the effect.
    """
    from tieconv.api.demonstration import demo_table, run_demo

    with count_progress("training") as done:
        result = run_demo(output, steps=steps, seed=seed, seeds=seeds, gradient_ratios=gradient_ratios, done=done)
    echo(str(result) if as_json else demo_table(result))
    first = Path(output) if seeds == 1 else Path(output) / f"seed-{seed}"
    page, tied = (path_word(str(path)) for path in (Path(output) / "report.html", first / "tied"))
    say(f"next: open {page}, or tieconv inspect {tied}")
