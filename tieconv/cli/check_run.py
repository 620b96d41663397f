"""What `tieconv check` does once its arguments are read: apply the gate, print the report, fix, write files."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import click

from tieconv.api import is_pattern
from tieconv.api.baselines import write_baseline
from tieconv.api.gate import expand, find_policy, run_gate
from tieconv.api.reports import guard_report, write_report
from tieconv.cli.progress import count_progress
from tieconv.cli.screen import paint, say, width
from tieconv.cli.streams import echo, formatted
from tieconv.reporters.ci.check_summary import Writing, fix_lines, summary
from tieconv.reporters.ci.formats import render
from tieconv.text import count, shell_word, shown

if TYPE_CHECKING:
    from tieconv.api import CheckedModel, CheckReport, GraphOutcome, Outcome, Policy


@dataclass(frozen=True, slots=True)
class CheckArguments:
    """What the user said; the names are those of the options."""

    models: tuple[str, ...]
    select: tuple[str, ...]
    ignore: tuple[str, ...]
    fail_on: str | None
    consumers: str | None
    depth: str | None
    format: str
    output_file: str | None
    config: str | None
    no_config: bool
    baseline: str | None
    write_baseline: str | None
    fix: bool
    output: str | None
    in_place: bool
    jobs: int
    embed: str | None
    head: str | None
    task: str | None
    limit: int | None
    resume: str | None
    recursive: bool

    def __post_init__(self) -> None:
        if self.output is not None and self.in_place:
            raise click.UsageError("give -o OUT or --in-place, not both")
        if (self.output is not None or self.in_place) and not self.fix:
            raise click.UsageError("-o OUT and --in-place go with --fix")
        if self.config and self.no_config:
            raise click.UsageError("give --config FILE or --no-config, not both")
        if self.fix and self.write_baseline:
            raise click.UsageError("--fix and --write-baseline do not go together: fix first, then write the baseline")

        if (self.task or self.limit) and not any(map(is_pattern, self.models)):
            raise click.UsageError("--task and --limit go with a pattern: hf://org/*")
        if self.resume and self.fix:
            raise click.UsageError("--resume and --fix do not go together: fix what the finished run found")

    @property
    def writes(self) -> bool:
        return self.output is not None or self.in_place


def run(arguments: CheckArguments) -> int:
    """The exit code, once everything is printed and written."""
    policy = _policy(arguments)
    patterns = any(map(is_pattern, arguments.models))
    expanded = expand(arguments.models, task=arguments.task, limit=arguments.limit, recursive=arguments.recursive)
    arguments = replace(arguments, models=expanded, task=None, limit=None)
    _guard_output(arguments)
    report, models = _checked(arguments, policy)
    if arguments.write_baseline:
        return _write_baseline(arguments.write_baseline, policy, report, models)
    outcomes: tuple[Outcome | GraphOutcome, ...] = ()
    if arguments.fix:
        report, outcomes = _remedied(arguments, policy, report, models)
    _show(arguments, report, outcomes)
    if patterns and arguments.format == "text":
        from tieconv.reporters.ci.check_table import table

        echo(f"\n{table(report)}", err=arguments.output_file is not None)
    writing = Writing(arguments.fix, arguments.output is not None, arguments.writes)
    closing = summary(report, policy.settings.path, fixing=arguments.fix)
    for line in (*fix_lines(report, writing), *map(_note, report.notes), closing):
        say(line)
    return report.exit_code


def _policy(arguments: CheckArguments) -> Policy:
    policy, skipped = find_policy(
        arguments.models,
        config=arguments.config,
        no_config=arguments.no_config,
        select=arguments.select,
        ignore=arguments.ignore,
        fail_on=arguments.fail_on,
        depth=arguments.depth,
        consumers=arguments.consumers,
        # The file to write may be the one that waives: it need not be there yet.
        baseline=arguments.baseline,
        without_baseline=bool(arguments.write_baseline),
    )
    for path in skipped:
        where = shell_word(os.path.relpath(path))
        say(_note(f"{where} lies in the model that it would judge: --config {where} uses it"))
    return policy


def _guard_output(arguments: CheckArguments) -> None:
    for path in filter(None, (arguments.output_file, arguments.write_baseline)):
        guard_report(path, arguments.models)


def _checked(arguments: CheckArguments, policy: Policy) -> tuple[CheckReport, dict[str, CheckedModel]]:
    def checked(tick: Callable[[CheckedModel], object]) -> tuple[CheckReport, dict[str, CheckedModel]]:
        return run_gate(
            policy,
            arguments.models,
            embed=arguments.embed,
            head=arguments.head,
            jobs=arguments.jobs,
            tick=tick,
            resume=arguments.resume,
        )

    done = 0
    with count_progress("check") as progress:

        def tick(_: CheckedModel) -> None:
            nonlocal done
            done += 1
            progress(done, len(arguments.models))

        return checked(tick)


def _remedied(
    arguments: CheckArguments, policy: Policy, report: CheckReport, models: dict[str, CheckedModel]
) -> tuple[CheckReport, tuple[Outcome | GraphOutcome, ...]]:
    """Safe remedies applied where the user said where to, else their plans."""
    from tieconv.api.fixes import fix, preview_fixes  # with all that writes

    if not arguments.writes:
        return preview_fixes(report)
    return fix(policy, report, models, arguments.output, embed=arguments.embed, head=arguments.head), ()


def _write_baseline(path: str, policy: Policy, report: CheckReport, models: dict[str, CheckedModel]) -> int:
    noun = count(write_baseline(path, policy, report, models), "finding")
    say(f"wrote {shown(path)}: {noun} that will not count; use it with --baseline {shell_word(path)}")
    return 0


def _show(arguments: CheckArguments, report: CheckReport, outcomes: tuple[Outcome | GraphOutcome, ...]) -> None:
    """The result on stdout or in its file; plans after it where it is text, else on stderr."""
    to_file = arguments.output_file is not None
    text = render(arguments.format, report) if to_file else render(arguments.format, report, paint, width())
    if arguments.output_file is not None:
        write_report(arguments.output_file, f"{text}\n" if text else "")
    elif text:
        (echo if arguments.format == "text" else formatted)(text)
    for outcome in outcomes:
        echo(_plan(outcome, in_place=arguments.in_place), err=to_file or arguments.format != "text")


def _plan(outcome: Outcome | GraphOutcome, *, in_place: bool) -> str:
    from tieconv.api import GraphOutcome
    from tieconv.reporters.text import graph_text, plan_text

    if isinstance(outcome, GraphOutcome):
        return graph_text.render(outcome, paint, width())
    return plan_text.render(outcome, paint, width(), in_place=in_place)


def _note(text: str) -> str:
    return f"{click.style('note', fg='cyan')}: {text}"
