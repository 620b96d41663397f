"""The report of `tieconv check` as a table with one row for each model, also for unread models."""

from __future__ import annotations

from tieconv.checkpoint.finding import Level
from tieconv.checkpoint.results.checked import CheckedModel, CheckReport
from tieconv.reporters.ci import check_view as view
from tieconv.reporters.text.columns import columns

_REASON = 100


def table(report: CheckReport) -> str:
    """Return a row for each model: verdict, findings by level and rules, or why it was not checked."""
    rows: list[tuple[str, ...]] = [("model", "verdict", "errors", "warnings", "notes", "rules")]
    rows += [_row(report, model) for model in report.models]
    return "\n".join(columns(rows))


def _row(report: CheckReport, model: CheckedModel) -> tuple[str, ...]:
    name = view.line(model.source)
    if model.failure is not None:
        return name, "not checked", "", "", "", view.line(model.failure.message, _REASON)
    levels = view.levels(model.open)
    rules = ", ".join(dict.fromkeys(entry.finding.rule for entry in model.open))
    counts = (str(levels[level]) for level in (Level.ERROR, Level.WARNING, Level.NOTE))
    verdict = "failed" if report.fails(model) else "unread" if model.unread else "ok"
    return name, verdict, *counts, rules
