"""The report of `tieconv check` as text for people."""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.finding import REVIEW_FIRST
from tieconv.checkpoint.results.checked import CheckedFinding, CheckedModel, CheckReport
from tieconv.reporters.ci import check_view as view
from tieconv.reporters.text.columns import LEVEL_STYLES, Paint, plain, wrapped
from tieconv.text import count

_SHOWN_FINDINGS = 40
_SHOWN_MODELS = 20


def render(report: CheckReport, paint: Paint = plain, width: int | None = None) -> str:
    """Return the models, the worst first, without a newline at the end.

    A model without findings takes one line. The notes and the summary are printed on stderr.
    """
    blocks = [list(_model(model, report, paint, width)) for model in view.worst_first(report.models)]
    filled = [block for block in blocks if len(block) > 1]
    silent = [line for block in blocks if len(block) == 1 for line in block]  # one list without blank lines
    below = [f"not checked: {view.line(path)} (below a model; --recursive checks it)" for path in report.not_checked]
    if len(below) > _SHOWN_MODELS:
        below[_SHOWN_MODELS:] = [f"… and {count(len(below) - _SHOWN_MODELS, 'more model')} (--format json lists them)"]
    return "\n\n".join("\n".join(block) for block in [*filled, [*silent, *below]] if block)


def _model(model: CheckedModel, report: CheckReport, paint: Paint, width: int | None) -> Iterator[str]:
    name = paint(view.line(model.output or model.source), "heading")
    if model.failure:
        yield f"{name}: {paint(view.trouble(model), 'error')}"
        yield from wrapped(view.line(model.failure.message), "  error: ", width)
        if model.failure.hint:
            yield from wrapped(view.line(model.failure.hint), "  hint: ", width)
        return
    verdict = paint("failed", "error") if report.fails(model) else paint("ok", "good")
    if model.unread and not report.fails(model):
        verdict = paint("unread", "warning")  # the rules saw only a part of the model
    dropped = len(view.waived(model))
    yield f"{name}: {verdict}" + (f", {count(dropped, 'finding')} waived" if dropped else "")
    findings = [*model.open]
    for entry in findings[:_SHOWN_FINDINGS]:
        yield from _finding(entry, paint, width)
    left = len(findings) - _SHOWN_FINDINGS
    if left > 0:
        yield f"  … and {count(left, 'more finding')} (--format json lists them)"
    for fix in model.fixes:
        yield from wrapped(view.fixed(fix), "  ", width)


def _finding(entry: CheckedFinding, paint: Paint, width: int | None) -> Iterator[str]:
    finding = entry.finding
    level = str(finding.level)
    lead = f"  {level.ljust(7)}  {view.line(finding.rule)}  "
    where = f"{view.line(entry.file)}: " if entry.file else ""
    first, *rest = wrapped(where + view.line(finding.message), lead, width)
    yield first.replace(level, paint(level, LEVEL_STYLES[level]), 1)
    yield from rest
    if finding.remedy:
        yield f"{' ' * len(lead)}next: {view.command(finding.remedy.command)}"
        if not finding.remedy.safe:
            yield from wrapped(REVIEW_FIRST, " " * len(lead), width)
