"""`tieconv fleet`: run a command on many models into a directory, and report on it."""

from __future__ import annotations

import io
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING, Any

import click

from tieconv.api import remove_temporary
from tieconv.api.check import expand, find_policy, read_lists
from tieconv.api.fleet import fleet_check, fleet_report, fleet_run, has_tables
from tieconv.cli import options as shared
from tieconv.cli.check import engine_of, engine_options, rule_options
from tieconv.cli.errors import WrongUsage
from tieconv.cli.screen import count_progress, document, echo, paint, say, width
from tieconv.errors import explained
from tieconv.install import install_command
from tieconv.reporters.text import wrapped
from tieconv.text import count, shell_word, shown, size

if TYPE_CHECKING:
    from tieconv.api import FleetProgress


# Options that every command over a fleet has, and its progress.


def _parsed_part(context: click.Context, parameter: click.Parameter, value: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", value)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise click.BadParameter("write I/N with I from 1 to N, such as 3/100", context, parameter)
    return int(match[1]), int(match[2])


run_options = shared.together(
    click.argument("sources", nargs=-1, required=True, type=shared.MODEL_PATH, metavar="SOURCE..."),
    shared.path_option("-o", "--output", "runs", required=True, metavar="RUNS", help="Directory of results."),
    shared.jobs_option,
    engine_options,
    click.option(
        "--part", default="1/1", callback=_parsed_part, metavar="I/N", help="Take part I of N, each on another machine."
    ),
)
filter_options = shared.together(
    click.option("-r", "--recursive", is_flag=True, help="Also take the models in subdirectories of each model."),
    click.option("--include", multiple=True, metavar="GLOB", help="Take only models with a name or path like GLOB."),
    click.option("--exclude", multiple=True, metavar="GLOB", help="Skip models with a name or path like GLOB."),
    click.option("--newer-than", metavar="AGE", help="Take only models that changed since AGE, such as 12h or 7d."),
)


@contextmanager
def fleet_progress(verb: str) -> Iterator[Callable[[FleetProgress], None]]:
    """Yield ``tick``, which shows the progress with its rates."""
    began = time.monotonic()
    with count_progress(verb) as bar:

        def tick(progress: FleetProgress) -> None:
            bar.label = f"{verb}: {speed(progress, time.monotonic() - began)}, {count(progress.unread, 'failure')}"
            bar(progress.finished, progress.total)

        yield tick


def speed(progress: FleetProgress, seconds: float) -> str:
    """Return the rates of ``seconds``: ``3 models/s, 20 MB/s``, or ``9.5 s a model, 20 MB/s``."""
    passed = max(seconds, 0.001)
    rate = progress.finished / passed
    models = f"{rate:,.0f} models/s" if rate >= 1 or not rate else f"{1 / rate:.1f} s a model"
    return f"{models}, {size(int(progress.bytes / passed))}/s"


# Run a command in this process, and return what it answers instead of printing it.


Answer = tuple[int, str, tuple[str, str] | None]
"""The exit code, the JSON document, and the message and hint if there is no answer."""


def run_command(arguments: Sequence[str]) -> Answer:
    """Run ``tieconv VERB --json`` with the arguments, the verb first."""
    output = io.StringIO()
    try:
        with redirect_stdout(output), redirect_stderr(io.StringIO()):
            code, failure = _ended(arguments)
    finally:
        remove_temporary()  # the copy of a model in an object store would stay until the worker ends
    document = output.getvalue()[max(output.getvalue().find("{"), 0) :]
    try:
        json.loads(document or "null")
    except ValueError:
        return code, "", failure or ("the command printed no JSON document", _look(arguments))
    if code not in (0, 1) and failure is None:
        failure = f"the command ended with exit code {code}", _look(arguments)
    return code, document, failure


def _ended(arguments: Sequence[str]) -> tuple[int, tuple[str, str] | None]:
    from tieconv.cli import main

    verb, *others = arguments
    try:
        with main.make_context("tieconv", [verb, "-q", "--json", *others]) as context:
            main.invoke(context)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None), None
    except click.exceptions.Exit as end:
        return end.exit_code, None
    except WrongUsage as error:
        return error.exit_code, (error.message, error.hint)
    except Exception as error:  # noqa: BLE001 - every error belongs to its model
        return getattr(error, "exit_code", 2), explained(error)
    return 0, None


def _look(arguments: Sequence[str]) -> str:
    return f"run it alone: tieconv {shown(' '.join(arguments), 1000)}"


# `tieconv fleet inspect`, `analyze`, `convert`, `export` and `parity`: a command for each model of a fleet.


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


def _command(verb: str) -> click.Command:
    from tieconv.cli import main

    command = main.get_command(click.Context(main), verb)
    assert command is not None
    return command


class _VerbCommand(click.Command):
    """A command with the options of another command, which may also follow ``--``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        at = args.index("--") if "--" in args else len(args)
        own, options = self._options(self.get_params(ctx)), self._options(_command(str(self.name)).params)
        parts: tuple[list[str], list[str]] = [], []
        words = iter(args[:at])
        for word in words:
            flag, _, joined = word.partition("=")
            option = own.get(flag) or options.get(flag)
            following = option.nargs if option and not joined and not option.is_flag and not option.count else 0
            parts[flag in options and flag not in own].extend(
                (word, *(value for _, value in zip(range(following), words, strict=False)))
            )
        ctx.meta[_OPTIONS] = (*parts[1], *args[at + 1 :])
        return super().parse_args(ctx, parts[0])

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_options(ctx, formatter)
        hidden = self._options(self.get_params(ctx)).keys() | _PLACES | {"--json"}
        options = dict.fromkeys(self._options(_command(str(self.name)).params).values())
        records = (entry.get_help_record(ctx) for entry in options if hidden.isdisjoint(entry.opts))
        with formatter.section(f"Options of tieconv {self.name}, for every model"):
            formatter.write_dl([record for record in records if record])

    @staticmethod
    def _options(parameters: list[click.Parameter]) -> dict[str, click.Option]:
        options = (entry for entry in parameters if isinstance(entry, click.Option))
        return {flag: entry for entry in options for flag in (*entry.opts, *entry.secondary_opts)}


def verb_command(verb: str) -> click.Command:
    """Return the command that runs ``verb`` on each model."""

    @run_options
    @filter_options
    @shared.common_options
    def command(
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
            run = fleet_run(
                verb, options, run_command, models, runs, part=part, jobs=at_once, tick=tick, executor=executor
            )
        without = len(run.unsuccessful) - run.failed
        ends = [f"{run.failed:,} with exit code 1"] if run.failed else []
        ends += [f"{without:,} without an answer"] if without else []
        _tell(run.progress, f"{run.progress.finished - run.progress.unchanged:,} run", ends, began)
        why = [(each.source, each.failure.message if each.failure else "exit code 1") for each in run.unsuccessful]
        _name(why, len(why))
        say(f"results: {shown(os.path.join(runs, verb))}.jsonl")
        sys.exit(run.exit_code)

    help = f"""{VERBS[verb]}

    A SOURCE is one of `fleet check`. Each model is a line of RUNS/{verb}.jsonl: exit code, seconds, error, and the JSON
    document of the command. A second run with the same options takes only models that changed, and those without an
    answer. Write an option that both commands have after --: `-- -v`.

    Exits with 2 when a model has no answer. Otherwise exits with 1 when the command exits with 1 for a model, and with
    0 otherwise.
    """
    return click.command(verb, cls=_VerbCommand, help=help, short_help=VERBS[verb])(command)


def _check(verb: str, options: tuple[str, ...]) -> None:
    """Raise `click.UsageError` for options that `verb` does not have, or that name what it writes."""
    from tieconv.cli import main

    command = _command(verb)
    models = ["GRAPH", "MODEL"] if verb == "parity" else ["MODEL"]
    # Click keeps the help option that it makes here, also for `tieconv VERB --help` later in the process.
    with command.make_context(f"tieconv {verb}", [*options, "--", *models], **main.context_settings) as context:
        for parameter in command.params:
            [flag] = sorted(parameter.opts, key=len)[-1:]
            names_place = flag in _PLACES or (verb, flag) == ("analyze", "--resume")
            source = context.get_parameter_source(str(parameter.name))
            if names_place and source is click.core.ParameterSource.COMMANDLINE:
                raise click.UsageError(f"{flag} cannot be used here: every model would write to the same place")


def _tell(progress: FleetProgress, did: str, ends: list[str], began: float) -> None:
    seconds = time.monotonic() - began
    lead, counts = f"{count(progress.total, 'model')}: ", ", ".join((did, f"{progress.unchanged:,} unchanged", *ends))
    for line in wrapped(f"{counts}; {seconds:.1f} s, {speed(progress, seconds)}", lead, width(sys.stderr)):
        say(line)


def _name(failures: Sequence[tuple[str, str]], total: int) -> None:
    """Print the first models without a result, each with its message, also with `-q`."""
    for source, message in failures[:_LISTED]:
        why = shown(message.removeprefix(f"{shown(source)}: "), 1000)
        for line in wrapped(why, f"  {shown(source)}: ", width(sys.stderr)):
            echo(line, err=True)
    if total > _LISTED:
        echo(f"  … and {total - _LISTED:,} more", err=True)


# `tieconv fleet`: run a command on many models into a directory, and report on it.


@click.group("fleet", cls=shared.WholeGroup, short_help="Run a command on thousands of models, and report what is new.")
def fleet_command() -> None:
    """Run a command on thousands of models, and keep the results in a directory.

    report compares two runs of check.
    """


@fleet_command.command("check")
@run_options
@shared.depth_option
@shared.loader_option
@filter_options
@shared.common_options
def check(
    sources: tuple[str, ...],
    runs: str,
    jobs: int,
    engine: str,
    address: str | None,
    part: tuple[int, int],
    depth: str | None,
    consumers: str | None,
    **choice: Any,
) -> None:
    """Check every model of each SOURCE, and add its findings to RUNS as it finishes.

    A SOURCE is a directory of models, a prefix (s3://bucket/models/) or a pattern (hf://org/*). @FILE is a list of
    models, and - is a list on stdin. A second run with the same RUNS reads only models whose files
    changed, and those that could not be read.

    Exits with 0 when every model was read, and with 2 otherwise. `tieconv fleet report RUNS` judges the findings.
    """
    models = expand(read_lists(sources, sys.stdin.buffer), **choice)
    began = time.monotonic()
    with engine_of(engine, address, jobs) as (executor, at_once), fleet_progress("check") as tick:
        progress = fleet_check(
            models, runs, depth=depth, consumers=consumers, part=part, jobs=at_once, tick=tick, executor=executor
        )
    unread = [f"{progress.unread:,} could not be read"] if progress.unread else []
    _tell(progress, f"{progress.finished - progress.unchanged - progress.unread:,} read", unread, began)
    _name(progress.failures, progress.unread)
    say(f"next: tieconv fleet report {shell_word(runs)}")
    sys.exit(2 if progress.unread else 0)


@fleet_command.command("report")
@click.argument("runs", type=click.Path())
@shared.path_option("--since", metavar="RUNS", help="Compare with this earlier run; exit with 1 on new findings.")
@shared.path_option("-o", "--output", metavar="DIR", help="Where to write the files.  [default: RUNS]")
@rule_options
@shared.json_option
@shared.common_options
def report(runs: str, since: str | None, output: str | None, as_json: bool, **options: Any) -> None:
    """Report on the results in RUNS: how many models fail, by which rules, and the worst first.

    Writes report.html, models.parquet and findings.parquet. The tables need pyarrow.

    With --since, exits with 1 when a finding is new, or a model can no longer be read. Exits with 2 when models are not
    finished, and with 0 otherwise.
    """
    if options["config"] and options["no_config"]:
        raise click.UsageError("--config and --no-config cannot be used together")
    result, files = fleet_report(runs, lambda models: find_policy(models, **options), since=since, output=output)
    if as_json:
        document(str(result))
    else:
        from tieconv.reporters.text.fleet_text import render

        echo(render(result, paint, width()))
    for note in result.checked.notes:
        say(f"note: {note}")
    say(f"wrote {', '.join(map(shown, files))}")
    if not has_tables():
        say(f"no tables were written, because pyarrow is not installed: {install_command('fleet')}")
    sys.exit(result.exit_code)


for _verb in VERBS:
    fleet_command.add_command(verb_command(_verb))
