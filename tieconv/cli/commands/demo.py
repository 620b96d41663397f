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
    help="Training steps for each of the three models.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the generated text.")
@json_option
@common_options
def command(output: str, steps: int, seed: int, as_json: bool) -> None:
    """Train a small model tied and untied, and show what tying changes.

    Takes two minutes on one core and needs tieconv[torch]. Writes three models (tied, untied, and untied with another
    seed), report.html and report.json. Every other command reads these models. Prints each measure with its floor and
    ceiling.
    """
    from tieconv.api.demonstration import demo_table, run_demo

    done = 0
    with count_progress("training") as tick:

        def step_done() -> None:
            nonlocal done
            done += 1
            tick(done, 3 * steps)

        result = run_demo(output, steps=steps, seed=seed, step_done=step_done)
    echo(str(result) if as_json else demo_table(result))
    page, tied = (path_word(str(Path(output) / name)) for name in ("report.html", "tied"))
    say(f"next: open {page}, or tieconv inspect {tied}")
