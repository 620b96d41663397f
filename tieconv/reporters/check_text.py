"""A check for people: each model, and under it what was found."""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.checked import CheckedFinding, CheckedModel, CheckReport
from tieconv.reporters.layout import Paint, plain, wrapped
from tieconv.text import count, shown

_STYLES = {"error": "error", "warning": "warning", "note": "quiet"}


def render(report: CheckReport, paint: Paint = plain, width: int | None = None) -> str:
    """One block a model, without a newline at the end."""
    return "\n".join(line for model in report.models for line in _model(model, paint, width))


def _model(model: CheckedModel, paint: Paint, width: int | None) -> Iterator[str]:
    name = paint(shown(model.output or model.source), "heading")
    waived = sum(entry.waiver is not None for entry in model.findings)
    told = f" ({waived} waived)" if waived else ""
    if model.failure is not None:
        yield f"{name}: {paint('not checked', 'error')}"
        yield from wrapped(model.failure.message, "  ", width)
        if model.failure.hint:
            yield f"  hint: {model.failure.hint}"
        return
    found = list(model.open)
    yield f"{name}: {count(len(found), 'finding') if found else paint('ok', 'good')}{told}"
    for entry in found:
        yield from _finding(entry, paint, width)


def _finding(entry: CheckedFinding, paint: Paint, width: int | None) -> Iterator[str]:
    finding = entry.finding
    level = str(finding.level)
    lead = f"  {level.ljust(7)}  {finding.rule}  "
    first, *rest = wrapped(finding.message, lead, width)
    yield first.replace(level, paint(level, _STYLES[level]), 1)
    yield from rest
    if finding.remedy:
        yield f"{' ' * len(lead)}next: {finding.remedy.command}"
        if not finding.remedy.safe:
            yield f"{' ' * len(lead)}(that changes what the model computes, or decides it)"
