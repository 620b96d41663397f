"""`tieconv fleet inspect`, `analyze`, `convert`, `export` and `parity`: a command for each model of a fleet."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from tieconv.api.findings.fleet import fleet_run
from tieconv.api.findings.gate import expand, read_lists
from tieconv.cli.fleet.engine import engine_of
from tieconv.cli.fleet.run_command import run_command
from tieconv.cli.fleet.run_options import filter_options, fleet_progress, run_options, speed
from tieconv.cli.options import common_options
from tieconv.cli.screen import say
from tieconv.text import count, shown

if TYPE_CHECKING:
    from tieconv.api import CommandRun

_LISTED = 20
"""Most models that are named after a run."""
_PLACES = {"--output", "--in-place", "--overwrite", "--dry-run", "--html", "--csv", "--parquet", "--figures"}
"""Options that say where something is written, which the run decides."""
VERBS = {
    "inspect": "Inspect each model, and keep what it stores and what is tied.",
    "analyze": "Analyze each model, and keep every figure.",
    "convert": "Convert each model. The copies are below RUNS/convert.",
    "export": "Export each model to ONNX. The graphs are below RUNS/export.",
    "parity": "Measure the graph that `fleet export` wrote for each model into the same RUNS.",
}
"""The commands and what they do."""
_OPTIONS = "tieconv.options"


class _VerbCommand(click.Command):
    """A command whose arguments after ``--`` are options of another command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own, ctx.meta[_OPTIONS] = args, ()
        if "--" in args:
            at = args.index("--")
            own, ctx.meta[_OPTIONS] = args[:at], tuple(args[at + 1 :])
        return super().parse_args(ctx, own)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Return the pieces of Click, and what may follow them."""
        return [*super().collect_usage_pieces(ctx), f"[-- OPTIONS OF {str(self.name).upper()}]"]


def verb_command(verb: str) -> click.Command:
    """Return the command that runs ``verb`` on each model."""

    @run_options
    @filter_options
    @common_options
    def command(runs: str, sources: tuple[str, ...], **options: Any) -> None:
        _run(verb, sources, runs, **options)

    help = f"""{VERBS[verb]}

    Options after -- are those of `tieconv {verb}`, and are used for every model. A SOURCE is one of `fleet check`. Each
    model is a line of RUNS/{verb}.jsonl: exit code, seconds, error, and the JSON document of the command. A second run
    with the same options takes only models that changed, and those without an answer.

    Exits with 2 when a model has no answer. Otherwise exits with 1 when the command exits with 1 for a model, and with
    0 otherwise.
    """
    return click.command(verb, cls=_VerbCommand, help=help, short_help=VERBS[verb])(command)


def _run(
    verb: str,
    sources: tuple[str, ...],
    runs: str,
    jobs: int,
    engine: str,
    address: str | None,
    part: tuple[int, int],
    **choice: Any,
) -> None:
    options = click.get_current_context().meta[_OPTIONS]
    _check(verb, options)
    models = expand(read_lists(sources, sys.stdin.buffer), **choice)
    began = time.monotonic()
    with engine_of(engine, address, jobs) as (executor, at_once), fleet_progress(verb) as tick:
        run = fleet_run(verb, options, run_command, models, runs, part=part, jobs=at_once, tick=tick, executor=executor)
    _tell(run, os.path.join(runs, verb), time.monotonic() - began)
    sys.exit(run.exit_code)


def _check(verb: str, options: tuple[str, ...]) -> None:
    """Raise `click.UsageError` for options that `verb` does not have, or that name what it writes."""
    from tieconv.cli import main

    command = main.get_command(click.get_current_context(), verb)
    assert command is not None
    models = ["GRAPH", "MODEL"] if verb == "parity" else ["MODEL"]
    # Click keeps the help option that it makes here, also for `tieconv VERB --help` later in the process.
    with command.make_context(f"tieconv {verb}", [*options, "--", *models], **main.context_settings) as context:
        for parameter in command.params:
            [flag] = sorted(parameter.opts, key=len)[-1:]
            names_place = flag in _PLACES or (verb, flag) == ("analyze", "--resume")
            source = context.get_parameter_source(str(parameter.name))
            if names_place and source is click.core.ParameterSource.COMMANDLINE:
                raise click.UsageError(f"{flag} cannot follow --: every model would write to the same place")


def _tell(run: CommandRun, results: str, seconds: float) -> None:
    progress, without = run.progress, len(run.unsuccessful) - run.failed
    ends = [f"{run.failed:,} with exit code 1"] if run.failed else []
    ends += [f"{without:,} without an answer"] if without else []
    say(
        f"{count(progress.total, 'model')}: {progress.finished - progress.unchanged:,} run, "
        f"{progress.unchanged:,} unchanged{''.join(f', {end}' for end in ends)}; "
        f"{seconds:.1f} s, {speed(progress, seconds)}"
    )
    for result in run.unsuccessful[:_LISTED]:
        source = shown(result.source)
        why = result.failure.message.removeprefix(f"{source}: ") if result.failure else "exit code 1"
        say(f"  {source}: {shown(why, 1000)}")
    if len(run.unsuccessful) > _LISTED:
        say(f"  … and {len(run.unsuccessful) - _LISTED:,} more")
    say(f"results: {shown(results)}.jsonl")
