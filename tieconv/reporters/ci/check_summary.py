"""The lines that `tieconv check` prints on stderr: the result of each remedy, and the closing line."""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.finding import Level
from tieconv.checkpoint.results.checked import CheckReport
from tieconv.checkpoint.value_type import record
from tieconv.reporters.ci import check_view as view
from tieconv.text import count, shown


@record
class Writing:
    """The options of the user.

    ``fix`` is set with --fix, ``out`` with -o, and ``writes`` with -o or --in-place.
    """

    fix: bool
    out: bool
    writes: bool


def fix_lines(report: CheckReport, asked: Writing) -> Iterator[str]:
    """Yield the result of each remedy, and a line if nothing was written."""
    for model in report.models:
        for fix in model.fixes:
            rules = ", ".join(fix.rules)
            if fix.refusal:
                yield f"not fixed: {rules}: {fix.command} ({shown(fix.refusal, 400)})"
            else:
                yield f"fixed: {rules}: {fix.command.rpartition(' -o ')[0]}"
        if asked.writes and model.output is not None:
            yield f"wrote {shown(model.output)}: verified and checked again"
        elif asked.fix and model.failure is None and not any(map(report.counts, model.findings)):
            yield f"{shown(model.source)}: nothing to fix"
        elif asked.out and model.failure is None:
            yield f"{shown(model.source)}: not written: its findings have no safe remedy"
    if asked.fix and not asked.writes:
        yield "nothing was written: give -o OUT or --in-place (tieconv checks the model again after each remedy)"


def summary(report: CheckReport, *, fixing: bool) -> str:
    """Return the closing line: the number of models and of findings, and whether the check fails."""
    facts = f"{count(len(report.models), 'model')}: {', '.join(filter(None, _parts(report)))}."
    left = f" {view.not_checked(report)}." if report.not_checked else ""
    where = f" Settings: {shown(report.settings)}" if report.settings else ""
    return f"{facts} {_verdict(report)}{left}{_fixable(report, fixing)}{where}"


def _verdict(report: CheckReport) -> str:
    counting = sum(1 for model in report.models for _ in filter(report.counts, model.findings))
    if counting:
        have = "has" if counting == 1 else "have"
        higher = "" if report.fail_on is Level.ERROR else " or higher"
        return f"The check failed: {count(counting, 'finding')} {have} level {report.fail_on}{higher}."
    if any(model.failure for model in report.models):
        return "The check is incomplete."
    return "The check passed."


def _fixable(report: CheckReport, fixing: bool) -> str:
    if fixing or not report.fixable:
        return ""
    return f" --fix can repair {count(report.fixable, 'finding')}."


def _parts(report: CheckReport) -> Iterator[str]:
    levels = [str(entry.finding.level) for model in report.models for entry in model.open]
    counts = [count(levels.count(level), level) for level in ("error", "warning", "note") if level in levels]
    waived = sum(entry.waiver is not None for model in report.models for entry in model.findings)
    unread = sum(model.failure is not None for model in report.models)
    unfixed = sum(model.failure is not None and bool(model.findings) for model in report.models)
    yield ", ".join(counts) or ("no finding" if unread < len(report.models) or not report.models else "")
    yield f"{waived} waived" if waived else ""
    yield f"{unread - unfixed} not checked" if unread > unfixed else ""
    yield f"{unfixed} not fixed" if unfixed else ""
