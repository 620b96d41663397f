"""The report of `tieconv check` as workflow commands, which GitHub shows as annotations on the files.

GitHub keeps ten annotations of each kind for a step and drops the others without a message. So the tenth annotation
gives the number of the others, and the log lists them.
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.finding import Level
from tieconv.checkpoint.results.checked import CheckedFinding, CheckedModel, CheckReport
from tieconv.reporters.ci import check_view as view
from tieconv.text import count

_ANNOTATIONS = 10
_LOGGED = 150
_TITLE = 255
_COMMANDS = {Level.ERROR: "error", Level.WARNING: "warning", Level.NOTE: "notice"}

_Entry = tuple[Level, str, str, str | None]
"""Level, title, message, path in the repository."""


def render(report: CheckReport) -> str:
    """Return the annotations, the worst first, then the other findings and a line about all models."""
    entries = [*_failures(report), *(_entry(model, entry) for model, entry in view.open_findings(report))]
    lines: list[str] = []
    left: list[_Entry] = []
    for level in Level:
        same = [entry for entry in entries if entry[0] is level]
        annotated = same if len(same) <= _ANNOTATIONS else same[: _ANNOTATIONS - 1]
        lines += map(_annotation, annotated)
        left += same[len(annotated) :]
        if len(annotated) < len(same):
            more = f"the log of this step lists {count(len(same) - len(annotated), f'more {level}')}"
            lines.append(_annotation((level, "tieconv check", more, None)))
    lines += (f"  {level} {title}: {message}" for level, title, message, _ in left[:_LOGGED])
    if len(left) > _LOGGED:
        lines.append(f"  … and {count(len(left) - _LOGGED, 'more finding')} (--format json lists them)")
    if report.not_checked:
        below = f"{view.not_checked(report)}: {view.line(', '.join(report.not_checked))}"
        lines.append(_annotation((Level.NOTE, "tieconv check", below, None)))
    return "\n".join([*lines, view.summary(report)])


def _failures(report: CheckReport) -> Iterator[_Entry]:
    for model in report.models:
        if model.failure:
            hint = f" (hint: {view.line(model.failure.hint)})" if model.failure.hint else ""
            title = f"{view.line(model.source, 200)} {view.trouble(model)}"
            yield Level.ERROR, title, view.line(model.failure.message) + hint, None


def _entry(model: CheckedModel, entry: CheckedFinding) -> _Entry:
    finding = entry.finding
    path = view.path_of(model.source, entry.file)
    text = view.line(finding.message)
    if step := finding.next_step:
        text = f"{text.removesuffix('.')}. Next: {step}"
    title = f"{view.line(finding.rule, 20)} in {view.line(path, 200)}"
    return finding.level, title, text, view.relative(path) if entry.file else None


def _annotation(entry: _Entry) -> str:
    level, title, message, path = entry
    properties = {"title": title[:_TITLE]}
    # An escaped name would be the name of another file.
    if path is not None and view.line(path, len(path)) == path:
        properties = {"file": path, **properties}
    listed = ",".join(
        f"{key}={_data(value).replace(':', '%3A').replace(',', '%2C')}" for key, value in properties.items()
    )
    return f"::{_COMMANDS[level]} {listed}::{_data(message)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
