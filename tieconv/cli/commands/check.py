"""`tieconv check`."""

from __future__ import annotations

import sys
from typing import Any

import click

from tieconv.cli.check_arguments import make_arguments
from tieconv.cli.check_run import run
from tieconv.cli.commands.completion import complete_rules
from tieconv.cli.options import MODEL_PATH, common_options, name_options
from tieconv.reporters.ci.formats import FORMATS


@click.command("check", short_help="The gate for CI: rules over models, exit 1 on a finding.")
@click.argument("models", nargs=-1, type=MODEL_PATH, metavar="[MODEL]...")
@click.option(
    "--select",
    multiple=True,
    metavar="RULES",
    shell_complete=complete_rules,
    help="Only these: TIE001, TIE, or ALL; with commas.",
)
@click.option(
    "--ignore",
    multiple=True,
    metavar="RULES",
    shell_complete=complete_rules,
    help="Rules to skip. The more specific selector wins.",
)
@click.option(
    "--fail-on",
    type=click.Choice(["error", "warning", "note"]),
    help="The mildest finding that makes the exit code 1.  [default: warning]",
)
@click.option("consumers", "--for", metavar="CONSUMER", help="Also what this loader will do with the model.")
@click.option(
    "--depth",
    type=click.Choice(["header", "candidates", "full"]),
    help="How much to read, as of inspect.  [default: candidates]",
)
@click.option("--format", type=click.Choice(FORMATS), default="text", show_default=True, help="Of the result.")
@click.option("as_json", "--json", is_flag=True, help="As --format json.")
@click.option("--output-file", type=click.Path(), metavar="FILE", help="Write the result to FILE instead of stdout.")
@click.option(
    "--config", type=click.Path(), metavar="FILE", help="Settings; else the nearest tieconv.toml or pyproject.toml."
)
@click.option("--no-config", is_flag=True, help="Look for no settings.")
@click.option("--baseline", type=click.Path(), metavar="FILE", help="Findings that FILE holds do not count.")
@click.option("--write-baseline", type=click.Path(), metavar="FILE", help="Write what is found to FILE, and exit 0.")
@click.option("--fix", is_flag=True, help="Apply safe remedies: to OUT, in place, or as plans to look at.")
@click.option("-o", "--output", type=click.Path(), metavar="OUT", help="With --fix: OUT, or OUT/NAME for many.")
@click.option("--in-place", is_flag=True, help="With --fix: replace the models themselves.")
@click.option(
    "-r", "--recursive", is_flag=True, help="Check the models below each MODEL too, also where it is a model itself."
)
@click.option(
    "-j", "--jobs", type=click.IntRange(1, 256), default=1, show_default=True, metavar="N", help="Processes at once."
)
@click.option("--task", metavar="TASK", help="Of hf://org/* only models of this task, such as text-generation.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Of hf://org/* at most N models.")
@click.option(
    "--resume", type=click.Path(), metavar="FILE", help="Keep what is found in FILE, and go on from what it holds."
)
@name_options
@common_options
@click.pass_context
def command(context: click.Context, /, models: tuple[str, ...], **options: Any) -> None:
    """Apply the rules to each MODEL; the current directory where none is given.

    Exits 2 when a model cannot be read (the others are checked all the same), else 1 when a finding that counts is
    at or above --fail-on, else 0. `tieconv rules` lists the rules, `tieconv explain RULE` says what one means.
    """
    if options.pop("as_json"):
        if context.get_parameter_source("format") is click.core.ParameterSource.COMMANDLINE:
            raise click.UsageError("give --json or --format, not both")
        options["format"] = "json"
    sys.exit(run(make_arguments({"models": models or (".",), **options})))
