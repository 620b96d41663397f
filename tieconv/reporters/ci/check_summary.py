"""What `tieconv check` says on stderr: what became of each remedy, and the closing line."""

from __future__ import annotations

import os
from collections.abc import Iterator

from tieconv.checkpoint.results.checked import CheckReport
from tieconv.checkpoint.value_type import record
from tieconv.text import count, shown


@record
class Writing:
    """What the user asked for: ``fix`` remedies at all, ``out`` to a new directory, ``writes`` there or in place."""

    fix: bool
    out: bool
    writes: bool


def fix_lines(report: CheckReport, asked: Writing) -> Iterator[str]:
    """Yield what became of each remedy; that nothing was written, where nothing was."""
    for model in report.models:
        for fix in model.fixes:
            rules = ", ".join(fix.rules)
            if fix.refusal:
                yield f"left: {rules}: {fix.command} ({shown(fix.refusal, 400)})"
            else:
                yield f"fixed: {rules}: {fix.command.rpartition(' -o ')[0]}"
        if asked.writes and model.output is not None:
            yield f"wrote {shown(model.output)}: verified, and checked again"
        elif asked.fix and model.failure is None and not any(map(report.counts, model.findings)):
            yield f"{shown(model.source)}: clean, nothing to fix"
        elif asked.out and model.failure is None:
            yield f"{shown(model.source)}: no safe remedy to apply for what counts, so nothing was written for it"
    if asked.fix and not asked.writes:
        yield "nothing was written: give -o OUT or --in-place; after each remedy the model is looked at again"


def summary(report: CheckReport, settings_path: str | None, *, fixing: bool) -> str:
    """Return the closing line: how many models, what the rules report, and whether that fails."""
    counting = sum(1 for model in report.models for _ in filter(report.counts, model.findings))
    verdict = f"failed: {count(counting, 'finding')} at or above {report.fail_on}" if counting else "passed"
    if report.fixable and not fixing:
        verdict += f", {report.fixable} with a safe remedy (--fix)"
    if any(model.failure for model in report.models) and not counting:
        verdict = "not decided"
    where = f" (settings: {shown(os.path.relpath(settings_path))})" if settings_path else ""
    return f"{count(len(report.models), 'model')}: {', '.join(filter(None, _parts(report)))}; {verdict}{where}"


def _parts(report: CheckReport) -> Iterator[str]:
    levels = [str(entry.finding.level) for model in report.models for entry in model.open]
    counts = [count(levels.count(level), level) for level in ("error", "warning", "note") if level in levels]
    waived = sum(entry.waiver is not None for model in report.models for entry in model.findings)
    unread = sum(model.failure is not None for model in report.models)
    unfixed = sum(model.failure is not None and bool(model.findings) for model in report.models)
    yield ", ".join(counts) or ("no finding" if unread < len(report.models) else "")
    yield f"{waived} waived" if waived else ""
    yield f"{unread - unfixed} not checked" if unread > unfixed else ""
    yield f"{unfixed} not fixed" if unfixed else ""
