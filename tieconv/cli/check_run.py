"""Run `tieconv check`: apply the rules, print the report, apply remedies, write files."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from tieconv.api import is_collection
from tieconv.api.findings.baselines import write_baseline
from tieconv.api.findings.gate import expand, find_policy, read_lists, run_gate
from tieconv.api.reports import guard_report, write_report
from tieconv.cli.check_arguments import Arguments
from tieconv.cli.fleet.engine import engine_of
from tieconv.cli.progress import count_progress
from tieconv.cli.screen import paint, say, width
from tieconv.cli.streams import echo, formatted
from tieconv.reporters.ci.check_text import Writing, fix_lines, summary
from tieconv.reporters.ci.formats import render
from tieconv.text import count, shell_word, shown

if TYPE_CHECKING:
    from tieconv.api import CheckedModel, CheckReport, GraphOutcome, Outcome, Policy


def run(arguments: Arguments) -> int:
    """Print and write the results, and return the exit code."""
    several = any(map(is_collection, arguments.model.models))
    arguments = replace(
        arguments,
        model=replace(arguments.model, models=_expanded(arguments)),
        choice=replace(arguments.choice, task=None, limit=None),
    )
    policy = _policy(arguments)
    _guard_output(arguments)
    report, models = _checked(arguments, policy)
    if arguments.result.write_baseline:
        return _write_baseline(arguments.result.write_baseline, policy, report, models)
    outcomes: tuple[Outcome | GraphOutcome, ...] = ()
    if arguments.result.fix:
        report, outcomes = _remedied(arguments, policy, report, models)
    _show(arguments, report, outcomes)
    if several and report.models and arguments.result.format == "text":
        from tieconv.reporters.ci.check_text import table

        echo(f"\n{table(report)}", err=arguments.result.output_file is not None)
    writing = Writing(arguments.result.fix, arguments.result.output is not None, arguments.result.writes)
    closing = summary(report, fixing=arguments.result.fix)
    for line in (*fix_lines(report, writing), *map(_note, report.notes), closing):
        say(line)
    return report.exit_code


def _expanded(arguments: Arguments) -> tuple[str, ...]:
    choice = arguments.choice
    return expand(
        read_lists(arguments.model.models, sys.stdin.buffer),
        task=choice.task,
        limit=choice.limit,
        recursive=choice.recursive,
        include=choice.include,
        exclude=choice.exclude,
        newer_than=choice.newer_than,
    )


def _policy(arguments: Arguments) -> Policy:
    return find_policy(
        arguments.model.models,
        config=arguments.rule.config,
        no_config=arguments.rule.no_config,
        select=arguments.rule.select,
        ignore=arguments.rule.ignore,
        fail_on=arguments.rule.fail_on,
        depth=arguments.rule.depth,
        consumers=arguments.rule.consumers,
        # The baseline may be the file that this run writes, so it need not exist yet.
        baseline=arguments.rule.baseline,
        without_baseline=bool(arguments.result.write_baseline),
    )[0]


def _guard_output(arguments: Arguments) -> None:
    for path in filter(None, (arguments.result.output_file, arguments.result.write_baseline)):
        guard_report(path, arguments.model.models)


def _checked(arguments: Arguments, policy: Policy) -> tuple[CheckReport, dict[str, CheckedModel]]:
    def checked(tick: Callable[[CheckedModel], object]) -> tuple[CheckReport, dict[str, CheckedModel]]:
        chosen = arguments.model
        with engine_of(chosen.engine, chosen.address, chosen.jobs) as (executor, jobs):
            return run_gate(
                policy,
                chosen.models,
                embed=chosen.embed,
                head=chosen.head,
                jobs=jobs,
                tick=tick,
                resume=chosen.resume,
                executor=executor,
            )

    done = 0
    with count_progress("check") as progress:

        def tick(_: CheckedModel) -> None:
            nonlocal done
            done += 1
            progress(done, len(arguments.model.models))

        return checked(tick)


def _remedied(
    arguments: Arguments, policy: Policy, report: CheckReport, models: dict[str, CheckedModel]
) -> tuple[CheckReport, tuple[Outcome | GraphOutcome, ...]]:
    """Apply the safe remedies if the user gave a target, otherwise return their plans."""
    from tieconv.api.findings.fixes import fix, preview_fixes  # imports the writing code

    if not arguments.result.writes:
        return preview_fixes(report)
    chosen = arguments.model
    return fix(policy, report, models, arguments.result.output, embed=chosen.embed, head=chosen.head), ()


def _write_baseline(path: str, policy: Policy, report: CheckReport, models: dict[str, CheckedModel]) -> int:
    noun = count(write_baseline(path, policy, report, models), "finding")
    say(f"wrote {shown(path)}: {noun} as a baseline; use it with --baseline {shell_word(path)}")
    return 0


def _show(arguments: Arguments, report: CheckReport, outcomes: tuple[Outcome | GraphOutcome, ...]) -> None:
    """Print or write the result, then the plans: to stderr if the result is not text on stdout."""
    result = arguments.result
    to_file = result.output_file is not None
    text = render(result.format, report) if to_file else render(result.format, report, paint, width())
    if result.output_file is not None:
        write_report(result.output_file, f"{text}\n" if text else "")
    elif text:
        (echo if result.format == "text" else formatted)(text)
    for outcome in outcomes:
        echo(_plan(outcome, in_place=result.in_place), err=to_file or result.format != "text")


def _plan(outcome: Outcome | GraphOutcome, *, in_place: bool) -> str:
    from tieconv.api import GraphOutcome
    from tieconv.reporters.text import plan_text

    if isinstance(outcome, GraphOutcome):
        return plan_text.render_graphs(outcome, paint, width())
    return plan_text.render(outcome, paint, width(), in_place=in_place)


def _note(text: str) -> str:
    return f"{click.style('note', fg='cyan')}: {text}"
