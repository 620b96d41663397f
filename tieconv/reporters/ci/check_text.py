"""The report of `tieconv check` as text for people, as a table, and its closing lines."""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.finding import Level
from tieconv.checkpoint.results.checked import CheckedFinding, CheckedModel, CheckReport
from tieconv.reporters.ci import check_view as view
from tieconv.reporters.text import Paint, columns, finding_lines, plain, wrapped
from tieconv.text import count, shown

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
    dropped = view.waived(model)
    why = "; ".join(dict.fromkeys(_reason(entry) for entry in dropped))
    note = f", {count(len(dropped), 'finding')} waived ({why})" if dropped else ""
    yield "\n".join(wrapped(note, f"{name}: {verdict}", width))
    findings = [*model.open]
    for entry in findings[:_SHOWN_FINDINGS]:
        where = f"{view.line(entry.file)}: " if entry.file else ""
        yield from finding_lines(entry.finding, where + view.line(entry.finding.message), paint, width)
    left = len(findings) - _SHOWN_FINDINGS
    if left > 0:
        yield f"  … and {count(left, 'more finding')} (--format json lists them)"


def _reason(entry: CheckedFinding) -> str:
    assert entry.waiver is not None
    own = entry.waiver.by == "model"
    return view.line(f"{entry.finding.rule}: {entry.waiver.reason}" if own else entry.waiver.sentence, 200)


# The report of `tieconv check` as a table with one row for each model, also for unread models.


def table(report: CheckReport) -> str:
    """Return a row for each model: verdict, findings by level and rules, or why it was not checked."""
    rows: list[tuple[str, ...]] = [("model", "verdict", "errors", "warnings", "notes", "rules")]
    rows += [_row(report, model) for model in report.models]
    return "\n".join(columns(rows))


def _row(report: CheckReport, model: CheckedModel) -> tuple[str, ...]:
    name = view.line(model.source)
    if model.failure is not None:
        return name, "not checked", "", "", "", view.line(model.failure.message, 100)
    levels = view.levels(model.open)
    rules = ", ".join(dict.fromkeys(entry.finding.rule for entry in model.open))
    counts = (str(levels[level]) for level in (Level.ERROR, Level.WARNING, Level.NOTE))
    verdict = "failed" if report.fails(model) else "unread" if model.unread else "ok"
    return name, verdict, *counts, rules


def fix_lines(report: CheckReport, *, fix: bool, out: bool, writes: bool, planned: bool) -> Iterator[str]:
    """Yield the result of each remedy, and a line if nothing was written.

    ``fix`` is set with --fix, ``out`` with -o, ``writes`` with -o or --in-place. ``planned`` says that plans were
    printed.
    """
    for model in report.models:
        for remedy in model.fixes:
            rules = ", ".join(remedy.rules)
            if remedy.refusal:
                yield f"not fixed: {rules}: {remedy.command} ({shown(remedy.refusal, 400)})"
            else:
                yield f"fixed: {rules}: {remedy.command.rpartition(' -o ')[0]}"
        if writes and model.output is not None:
            yield f"wrote {shown(model.output)}: verified and checked again"
        elif fix and model.failure is None and not any(map(report.counts, model.findings)):
            yield f"{shown(model.source)}: nothing to fix"
        elif (out or (fix and not planned)) and model.failure is None:
            yield f"{shown(model.source)}: not written: its findings have no safe remedy"
    if planned:
        yield "nothing was written: give -o OUT or --in-place"
