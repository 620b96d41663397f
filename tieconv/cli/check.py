"""`tieconv check`: apply the rules, print the report, apply remedies, write files."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from tieconv.api import guard_report, is_collection, is_list, is_pattern, write_text
from tieconv.api.check import expand, find_policy, ray_cluster, read_lists, run_gate, write_baseline
from tieconv.checkpoint.value_type import record
from tieconv.cli import options as shared
from tieconv.cli.errors import tell
from tieconv.cli.screen import count_progress, echo, formatted, paint, say, width
from tieconv.reporters.ci import check_text, check_view
from tieconv.reporters.ci.formats import FORMATS, render
from tieconv.reporters.text import wrapped
from tieconv.text import count, shell_word, shown

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from tieconv.api import CheckedModel, CheckReport, GraphOutcome, Outcome, Policy

_CHOICE = ("task", "limit", "recursive", "include", "exclude", "newer_than")
"""Options of `api.check.expand`."""
_RULES = ("config", "no_config", "select", "ignore", "fail_on", "depth", "consumers", "baseline")
"""Options of `api.check.find_policy`."""


@record
class Arguments:
    """The whole command line, by the names of its options. Raises `click.UsageError` if they contradict each other."""

    models: tuple[str, ...]
    embed: str | None
    head: str | None
    base: str | None
    jobs: int
    engine: str
    address: str | None
    resume: str | None
    recursive: bool
    task: str | None
    limit: int | None
    include: tuple[str, ...]
    exclude: tuple[str, ...]
    newer_than: str | None
    select: tuple[str, ...]
    ignore: tuple[str, ...]
    fail_on: str | None
    consumers: str | None
    depth: str | None
    config: str | None
    no_config: bool
    baseline: str | None
    format: str
    output_file: str | None
    reports: tuple[str, ...]
    write_baseline: str | None
    fix: bool
    output: str | None
    in_place: bool

    def __post_init__(self) -> None:
        wrong = None
        if self.output is not None and self.in_place:
            wrong = "-o OUT and --in-place cannot be used together"
        elif self.writes and not self.fix:
            wrong = "-o OUT and --in-place need --fix"
        elif self.config and self.no_config:
            wrong = "--config and --no-config cannot be used together"
        elif self.fix and self.write_baseline:
            wrong = "--fix and --write-baseline cannot be used together; fix first, then write the baseline"
        elif self.task and not any(is_pattern(source) or is_list(source) for source in self.models):
            wrong = "--task needs a pattern such as hf://org/*"
        elif self.limit and not any(map(is_collection, self.models)):
            wrong = "--limit needs a pattern such as hf://org/* or a prefix such as s3://bucket/models/"
        elif self.resume and self.fix:
            wrong = "--resume and --fix cannot be used together; finish the run first, then fix"
        elif not all(re.fullmatch(f"({'|'.join(FORMATS)})=.+", report, re.DOTALL) for report in self.reports):
            wrong = f"--report takes FORMAT=FILE, such as sarif=check.sarif; the formats are {', '.join(FORMATS)}"
            wrong += "; a page as HTML: tieconv fleet report" if any("html=" in each for each in self.reports) else ""
        if wrong:
            raise click.UsageError(wrong)

    @property
    def writes(self) -> bool:
        """Whether remedies are applied, not only shown."""
        return self.output is not None or self.in_place

    def only(self, *names: str) -> dict[str, Any]:
        """Return some of the options, by their names."""
        return {name: getattr(self, name) for name in names}


engine_options = shared.together(
    click.option(
        "--engine",
        type=click.Choice(["processes", "ray"]),
        default="processes",
        show_default=True,
        help="Read the models in processes of this machine, or as tasks of Ray. With ray, -j 1 means every CPU.",
    ),
    click.option(
        "--address",
        metavar="ADDRESS",
        help="With --engine ray: the cluster, such as auto or HOST:6379.  [default: RAY_ADDRESS, or a new one here]",
    ),
)
"""The options that choose where `check` and `fleet check` read models: processes here, or a cluster of Ray."""


rule_options = shared.together(
    shared.rules_option("--select", "Rules to apply: codes or their first letters, such as TIE001,STO, or ALL."),
    shared.rules_option("--ignore", "Rules to skip. The more specific selector wins."),
    click.option(
        "--fail-on",
        type=click.Choice(["error", "warning", "note"]),
        help="A finding counts when it has this level or higher.  [default: warning]",
    ),
    shared.path_option("--config", help="Settings file. Default: the nearest tieconv.toml or pyproject.toml."),
    click.option("--no-config", is_flag=True, help="Ignore settings files."),
    shared.path_option("--baseline", help="Ignore the findings that are listed in FILE."),
)
"""The options that choose which findings of `check` and `fleet report` count."""


@contextmanager
def engine_of(name: str, address: str | None, jobs: int) -> Iterator[tuple[Executor | None, int]]:
    """Give the executor, ``None`` for processes, and the number of tasks at once. Raises `click.UsageError`."""
    if name != "ray":
        if address is not None:
            raise click.UsageError("--address needs --engine ray")
        yield None, jobs
        return
    with ray_cluster(address) as executor:
        yield executor, jobs if jobs > 1 else executor.workers


def run(arguments: Arguments) -> int:
    """Print and write the results, and return the exit code."""
    named = read_lists(arguments.models, sys.stdin.buffer)
    sources = expand(named, **arguments.only(*_CHOICE))
    whole = not any(arguments.only("include", "exclude", "newer_than").values())
    searched = [path for path in named if whole and path not in sources]
    # The baseline may be the file that this run writes, so it need not exist yet.
    baseline = arguments.write_baseline
    reports = [(format_, path) for format_, _, path in (report.partition("=") for report in arguments.reports)]
    reports += [(arguments.format, arguments.output_file)] if arguments.output_file is not None else []
    rules = arguments.only(*_RULES)
    policy = find_policy(sources, **rules, without_baseline=bool(baseline), searched=searched)
    for path in filter(None, (baseline, *(path for _, path in reports))):
        guard_report(path, sources)
    report, models = _checked(arguments, policy, sources)
    if baseline:
        noun = count(write_baseline(baseline, policy, report, models), "finding")
        say(f"wrote {shown(baseline)}: {noun} as a baseline; use it with --baseline {shell_word(baseline)}")
        for failure, source in ((model.failure, shown(model.source)) for model in report.models):
            if failure is not None:
                why = failure.message if source in failure.message else f"{source}: {failure.message}"
                tell(f"the baseline has no findings of a model that could not be read: {why}", failure.hint)
        return 2 if report.exit_code == 2 else 0
    outcomes: tuple[Outcome | GraphOutcome, ...] = ()
    if arguments.fix:
        from tieconv.api.fixes import fix, preview_fixes  # imports the writing code

        if arguments.writes:
            report = fix(policy, report, models, arguments.output, **arguments.only("embed", "head"))
        else:
            report, outcomes = preview_fixes(report)
    _show(arguments, report, outcomes)
    for format_, path in reports:
        text = render(format_, report)
        write_text(path, f"{text}\n" if text else "")
        say(f"wrote {shown(path)}")
    if any(map(is_collection, arguments.models)) and report.models and arguments.format == "text":
        echo(f"\n{check_text.table(report)}", err=arguments.output_file is not None)
    written = {"out": arguments.output is not None, "writes": arguments.writes, "planned": bool(outcomes)}
    fixed = check_text.fix_lines(report, fix=arguments.fix, **written)
    lead = f"{click.style('note', fg='cyan')}: "
    notes = (line for note in report.notes for line in wrapped(note, lead, width(sys.stderr)))
    lines = [*fixed, *notes]
    if arguments.format != "github":  # the annotations end with the closing line
        lines += wrapped(check_view.summary(report, fixing=arguments.fix), "", width(sys.stderr))
    for line in lines:
        say(line)
    return report.exit_code


def _checked(
    arguments: Arguments, policy: Policy, sources: tuple[str, ...]
) -> tuple[CheckReport, dict[str, CheckedModel]]:
    done = 0
    with count_progress("check") as progress:

        def tick(_: CheckedModel) -> None:
            nonlocal done
            done += 1
            progress(done, len(sources))

        with engine_of(arguments.engine, arguments.address, arguments.jobs) as (executor, jobs):
            options = arguments.only("embed", "head", "base", "resume")
            return run_gate(policy, sources, **options, jobs=jobs, tick=tick, executor=executor)


def _show(arguments: Arguments, report: CheckReport, outcomes: tuple[Outcome | GraphOutcome, ...]) -> None:
    """Print the result without --output-file, then the plans: to stderr if the result is not text on stdout."""
    to_file = arguments.output_file is not None
    text = "" if to_file else render(arguments.format, report, paint, width())
    if text:
        (echo if arguments.format == "text" else formatted)(text)
    for outcome in outcomes:
        from tieconv.reporters.text.plan_text import render as render_plan

        plan = render_plan(outcome, paint, width(), in_place=arguments.in_place)
        echo(plan, err=to_file or arguments.format != "text")


@click.command("check", short_help="Apply the rules to models, and exit with 1 on a finding. A gate for CI.")
@click.argument("models", nargs=-1, type=shared.MODEL_PATH, metavar="[MODEL]...")
@rule_options
@shared.base_option
@shared.loader_option
@shared.depth_option
@click.option("--format", type=click.Choice(FORMATS), default="text", show_default=True, help="Output format.")
@click.option("as_json", "--json", is_flag=True, help="Same as --format json.")
@shared.path_option("--output-file", help="Write the result to FILE instead of stdout.")
@click.option(
    "reports",
    "--report",
    multiple=True,
    metavar="FORMAT=FILE",
    help="Write a further report, such as sarif=check.sarif. Can be repeated.",
)
@shared.path_option(
    "--write-baseline",
    help="Write the findings to FILE as a baseline. Exit with 0, or with 2 if a model could not be read.",
)
@click.option("--fix", is_flag=True, help="Apply the safe remedies; print their plans without -o or --in-place.")
@shared.path_option(
    "-o", "--output", metavar="OUT", help="With --fix: write the model to OUT, or several models to OUT/NAME."
)
@click.option("--in-place", is_flag=True, help="With --fix: replace the models.")
@click.option("-r", "--recursive", is_flag=True, help="Also check the models in subdirectories of each MODEL.")
@shared.jobs_option
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
@shared.path_option("--resume", help="Save the progress to FILE, and continue from it on the next run.")
@shared.name_options
@shared.common_options
@click.pass_context
def check_command(context: click.Context, /, models: tuple[str, ...], **options: Any) -> None:
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
    sys.exit(run(Arguments(models=models or (".",), **options)))
