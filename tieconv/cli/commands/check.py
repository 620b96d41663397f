"""`tieconv check`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import click

from tieconv.api.gate import expand, run_gate
from tieconv.checkpoint.graph import GraphOutcome
from tieconv.checkpoint.plan import Outcome
from tieconv.checkpoint.results.checked import CheckedModel, CheckReport
from tieconv.cli.commands.completion import complete_rules
from tieconv.cli.options import MODEL_PATH, common_options, name_options
from tieconv.cli.progress import count_progress
from tieconv.cli.report_output import guard_output
from tieconv.cli.screen import paint, say, width
from tieconv.cli.streams import echo, formatted
from tieconv.errors import SettingsError
from tieconv.gate.assemble import find_settings, load_baseline, load_settings, make_policy
from tieconv.gate.policy import Policy
from tieconv.gate.settings import Settings
from tieconv.reporters.ci.formats import FORMATS, render
from tieconv.sources.hub.repo_path import is_pattern
from tieconv.sources.texts import write_text
from tieconv.text import count, shell_word, shown


@dataclass(frozen=True, slots=True)
class Arguments:
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
    sys.exit(run(Arguments(models=models or (".",), **options)))


def run(arguments: Arguments) -> int:
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
    for line in (*_fixes(arguments, report), *map(_note, report.notes), _summary(arguments, report, policy)):
        say(line)
    return report.exit_code


def _policy(arguments: Arguments) -> Policy:
    if arguments.config:
        settings = load_settings(arguments.config)
    elif arguments.no_config:
        settings = Settings()
    else:
        settings, skipped = find_settings(arguments.models)
        for path in skipped:
            where = shell_word(os.path.relpath(path))
            say(_note(f"{where} lies in the model that it would judge: --config {where} uses it"))
    return make_policy(
        settings,
        select=arguments.select,
        ignore=arguments.ignore,
        fail_on=arguments.fail_on,
        depth=arguments.depth,
        consumers=arguments.consumers,
        # The file to write may be the one that waives: it need not be there yet.
        baseline=arguments.baseline,
        without_baseline=bool(arguments.write_baseline),
    )


def _guard_output(arguments: Arguments) -> None:
    for path in filter(None, (arguments.output_file, arguments.write_baseline)):
        guard_output(path, arguments.models)


def _checked(arguments: Arguments, policy: Policy) -> tuple[CheckReport, dict[str, CheckedModel]]:
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
    arguments: Arguments, policy: Policy, report: CheckReport, models: dict[str, CheckedModel]
) -> tuple[CheckReport, tuple[Outcome | GraphOutcome, ...]]:
    """Safe remedies applied where the user said where to, else their plans."""
    from tieconv.api.fixes import fix, preview_fixes  # with all that writes

    if not arguments.writes:
        return preview_fixes(report)
    return fix(policy, report, models, arguments.output, embed=arguments.embed, head=arguments.head), ()


def _write_baseline(path: str, policy: Policy, report: CheckReport, models: dict[str, CheckedModel]) -> int:
    failed = next((model for model in report.models if model.failure is not None), None)
    if failed is not None and failed.failure is not None:
        raise SettingsError(
            f"{shown(path)} was not written: {failed.failure.message}",
            "a baseline needs every model: leave this one out, or mend it",
            "baseline.unreadable-model",
        )
    old = load_baseline(path) if os.path.lexists(path) and os.path.getsize(path) else None
    write_text(path, policy.debt(models, path, old))
    written = len(load_baseline(path).entries)
    noun = count(written, "finding")
    say(f"wrote {shown(path)}: {noun} that will not count; use it with --baseline {shell_word(path)}")
    return 0


def _show(arguments: Arguments, report: CheckReport, outcomes: tuple[Outcome | GraphOutcome, ...]) -> None:
    """The result on stdout or in its file; plans after it where it is text, else on stderr."""
    to_file = arguments.output_file is not None
    text = render(arguments.format, report) if to_file else render(arguments.format, report, paint, width())
    if arguments.output_file is not None:
        write_text(arguments.output_file, f"{text}\n" if text else "")
    elif text:
        (echo if arguments.format == "text" else formatted)(text)
    for outcome in outcomes:
        echo(_plan(outcome, in_place=arguments.in_place), err=to_file or arguments.format != "text")


def _plan(outcome: Outcome | GraphOutcome, *, in_place: bool) -> str:
    from tieconv.reporters.text import graph_text, plan_text

    if isinstance(outcome, GraphOutcome):
        return graph_text.render(outcome, paint, width())
    return plan_text.render(outcome, paint, width(), in_place=in_place)


def _fixes(arguments: Arguments, report: CheckReport) -> Iterator[str]:
    """What became of each remedy; that nothing was written, where nothing was."""
    for model in report.models:
        for fix in model.fixes:
            rules = ", ".join(fix.rules)
            if fix.refusal:
                yield f"left: {rules}: {fix.command} ({shown(fix.refusal, 400)})"
            else:
                yield f"fixed: {rules}: {fix.command.rpartition(' -o ')[0]}"
        if arguments.writes and model.output is not None:
            yield f"wrote {shown(model.output)}: verified, and checked again"
        elif arguments.fix and model.failure is None and not any(map(report.counts, model.findings)):
            yield f"{shown(model.source)}: clean, nothing to fix"
        elif arguments.output is not None and model.failure is None:
            yield f"{shown(model.source)}: no safe remedy to apply for what counts, so nothing was written for it"
    if arguments.fix and not arguments.writes:
        yield "nothing was written: give -o OUT or --in-place; after each remedy the model is looked at again"


def _note(text: str) -> str:
    return f"{click.style('note', fg='cyan')}: {text}"


def _fixable(model: CheckedModel, report: CheckReport) -> int:
    """The findings that count and that `--fix` would try to end."""
    remedies = [entry.finding.remedy for entry in filter(report.counts, model.findings)]
    safe = [remedy.action for remedy in remedies if remedy and remedy.safe and remedy.action]
    if not safe:
        return 0
    from tieconv.gate.fixes import concerns  # with all that writes

    return sum(concerns(action, model) for action in safe)


def _summary(arguments: Arguments, report: CheckReport, policy: Policy) -> str:
    """The closing line: how many models, what was found, and whether that fails."""
    levels = [str(entry.finding.level) for model in report.models for entry in model.open]
    counts = [count(levels.count(level), level) for level in ("error", "warning", "note") if level in levels]
    waived = sum(entry.waiver is not None for model in report.models for entry in model.findings)
    unread = sum(model.failure is not None for model in report.models)
    parts = [", ".join(counts) or ("no finding" if unread < len(report.models) else "")]
    parts += [f"{waived} waived"] if waived else []
    unfixed = sum(model.failure is not None and bool(model.findings) for model in report.models)
    parts += [f"{unread - unfixed} not checked"] if unread > unfixed else []
    parts += [f"{unfixed} not fixed"] if unfixed else []
    counted = [entry for model in report.models for entry in filter(report.counts, model.findings)]
    counting, safe = len(counted), sum(_fixable(model, report) for model in report.models)
    verdict = f"failed: {count(counting, 'finding')} at or above {report.fail_on}" if counting else "passed"
    if safe and not arguments.fix:
        verdict += f", {safe} with a safe remedy (--fix)"
    verdict = "not decided" if unread and not counting else verdict
    where = f" (settings: {shown(os.path.relpath(policy.settings.path))})" if policy.settings.path else ""
    return f"{count(len(report.models), 'model')}: {', '.join(filter(None, parts))}; {verdict}{where}"
