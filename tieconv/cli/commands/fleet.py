"""`tieconv fleet`: run a command on many models into a directory, and report on it."""

from __future__ import annotations

import sys
import time
from typing import Any

import click

from tieconv.api.findings.fleet import fleet_check, fleet_report, has_tables
from tieconv.api.findings.gate import expand, find_policy, read_lists
from tieconv.cli.commands.completion import complete_rules
from tieconv.cli.fleet.engine import engine_of
from tieconv.cli.fleet.run_options import filter_options, fleet_progress, run_options, speed
from tieconv.cli.fleet.verbs import VERBS, verb_command
from tieconv.cli.options import WholeGroup, common_options, json_option
from tieconv.cli.screen import paint, say, width
from tieconv.cli.streams import document, echo
from tieconv.install import install_command
from tieconv.text import count, shell_word, shown


@click.group("fleet", cls=WholeGroup, short_help="Run a command on thousands of models, and report what is new.")
def command() -> None:
    """Run a command on thousands of models, and keep the results in a directory.

    report compares two runs of check.
    """


@command.command("check")
@run_options
@click.option(
    "--depth",
    type=click.Choice(["header", "candidates", "full"]),
    help="How much to read; see `tieconv inspect --help`.  [default: candidates]",
)
@click.option("consumers", "--for", metavar="CONSUMER", help="Also report what this loader does with the model.")
@filter_options
@common_options
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
    unread = f", {progress.unread:,} could not be read" if progress.unread else ""
    seconds = time.monotonic() - began
    say(
        f"{count(progress.total, 'model')}: {progress.finished - progress.unchanged:,} read, "
        f"{progress.unchanged:,} unchanged{unread}; {seconds:.1f} s, {speed(progress, seconds)}"
    )
    say(f"next: tieconv fleet report {shell_word(runs)}")
    sys.exit(2 if progress.unread else 0)


@command.command("report")
@click.argument("runs", type=click.Path())
@click.option(
    "--since", type=click.Path(), metavar="RUNS", help="Compare with this earlier run; exit with 1 on new findings."
)
@click.option("-o", "--output", type=click.Path(), metavar="DIR", help="Where to write the files.  [default: RUNS]")
@click.option(
    "--select", multiple=True, metavar="RULES", shell_complete=complete_rules, help="Rules that count, such as TIE,STO."
)
@click.option(
    "--ignore", multiple=True, metavar="RULES", shell_complete=complete_rules, help="Rules that do not count."
)
@click.option(
    "--fail-on",
    type=click.Choice(["error", "warning", "note"]),
    help="A finding counts when it has this level or higher.  [default: warning]",
)
@click.option("--config", type=click.Path(), metavar="FILE", help="Settings file, as for `tieconv check`.")
@click.option("--no-config", is_flag=True, help="Ignore settings files.")
@click.option("--baseline", type=click.Path(), metavar="FILE", help="Ignore the findings that are listed in FILE.")
@json_option
@common_options
def report(runs: str, since: str | None, output: str | None, as_json: bool, **options: Any) -> None:
    """Report on the results in RUNS: how many models fail, by which rules, and the worst first.

    Writes report.html, models.parquet and findings.parquet. The tables need pyarrow.

    With --since, exits with 1 when a finding is new, or a model can no longer be read. Exits with 2 when models are not
    finished, and with 0 otherwise.
    """
    if options["config"] and options["no_config"]:
        raise click.UsageError("--config and --no-config cannot be used together")
    result, files = fleet_report(runs, lambda models: find_policy(models, **options)[0], since=since, output=output)
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
    command.add_command(verb_command(_verb))
