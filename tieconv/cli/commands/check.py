"""`tieconv check`."""

from __future__ import annotations

import sys
from typing import Any

import click

from tieconv.cli.check_arguments import make_arguments
from tieconv.cli.check_run import run
from tieconv.cli.commands.completion import complete_rules
from tieconv.cli.fleet.engine import engine_options
from tieconv.cli.options import MODEL_PATH, common_options, name_options
from tieconv.reporters.ci.formats import FORMATS


@click.command("check", short_help="Apply the rules to models, and exit with 1 on a finding. A gate for CI.")
@click.argument("models", nargs=-1, type=MODEL_PATH, metavar="[MODEL]...")
@click.option(
    "--select",
    multiple=True,
    metavar="RULES",
    shell_complete=complete_rules,
    help="Rules to apply: codes or their first letters, such as TIE001,STO, or ALL.",
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
    help="Exit with 1 when a finding has this level or higher.  [default: warning]",
)
@click.option("consumers", "--for", metavar="CONSUMER", help="Also report what this loader does with the model.")
@click.option(
    "--depth",
    type=click.Choice(["header", "candidates", "full"]),
    help="How much to read; see `tieconv inspect --help`.  [default: candidates]",
)
@click.option("--format", type=click.Choice(FORMATS), default="text", show_default=True, help="Output format.")
@click.option("as_json", "--json", is_flag=True, help="Same as --format json.")
@click.option("--output-file", type=click.Path(), metavar="FILE", help="Write the result to FILE instead of stdout.")
@click.option(
    "--config",
    type=click.Path(),
    metavar="FILE",
    help="Settings file. Default: the nearest tieconv.toml or pyproject.toml.",
)
@click.option("--no-config", is_flag=True, help="Ignore settings files.")
@click.option("--baseline", type=click.Path(), metavar="FILE", help="Ignore the findings that are listed in FILE.")
@click.option(
    "--write-baseline",
    type=click.Path(),
    metavar="FILE",
    help="Write the findings to FILE as a baseline, and exit with 0.",
)
@click.option("--fix", is_flag=True, help="Apply the safe remedies. Without -o or --in-place, print their plans.")
@click.option(
    "-o",
    "--output",
    type=click.Path(),
    metavar="OUT",
    help="With --fix: write the model to OUT, or several models to OUT/NAME.",
)
@click.option("--in-place", is_flag=True, help="With --fix: replace the models.")
@click.option("-r", "--recursive", is_flag=True, help="Also check the models in subdirectories of each MODEL.")
@click.option(
    "-j", "--jobs", type=click.IntRange(1, 256), default=1, show_default=True, metavar="N", help="Number of processes."
)
@engine_options
@click.option(
    "--task", metavar="TASK", help="With hf://org/*: check only models of this task, such as text-generation."
)
@click.option(
    "--limit",
    type=click.IntRange(1),
    metavar="N",
    help="With hf://org/* or s3://bucket/models/: check at most N models.",
)
@click.option("--include", multiple=True, metavar="GLOB", help="Check only models whose name or path matches GLOB.")
@click.option("--exclude", multiple=True, metavar="GLOB", help="Do not check models whose name or path matches GLOB.")
@click.option(
    "--newer-than", metavar="AGE", help="Check only models that changed since AGE, such as 12h, 7d or 2026-11-01."
)
@click.option(
    "--resume",
    type=click.Path(),
    metavar="FILE",
    help="Save the progress to FILE, and continue from it on the next run.",
)
@name_options
@common_options
@click.pass_context
def command(context: click.Context, /, models: tuple[str, ...], **options: Any) -> None:
    """Apply the rules to each MODEL. The default is the current directory.

    A MODEL may also be a pattern (hf://org/*, s3://bucket/models/llama-*), or a prefix (s3://bucket/models/). @FILE
    is a list of models, and - is a list on stdin.

    Exits with 2 when a model cannot be read; the other models are still checked. Exits with 1 when a finding has the
    level of --fail-on or higher. Exits with 0 otherwise. `tieconv rules` lists the rules, and `tieconv explain RULE`
    explains one.

    A directory with weights is one model. The models in its subdirectories are listed as not checked. They do not
    change the exit code, because no loader of the directory reads them. With -r they are checked and count.
    """
    if options.pop("as_json"):
        if context.get_parameter_source("format") is click.core.ParameterSource.COMMANDLINE:
            raise click.UsageError("--json and --format cannot be used together")
        options["format"] = "json"
    sys.exit(run(make_arguments({"models": models or (".",), **options})))
