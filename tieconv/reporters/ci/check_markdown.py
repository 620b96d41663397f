"""The report of `tieconv check` as GitHub-flavoured Markdown, for job summaries, comments and model cards.

Words of letters are written unchanged. Other text from a model becomes a code span, or entities if a code span is
unsafe. No such text can become a tag, a link, a mention or a table cell.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from tieconv.checkpoint.finding import REVIEW_FIRST, Level
from tieconv.checkpoint.results.checked import CheckedFinding, CheckedModel, CheckReport
from tieconv.reporters.ci import check_view as view
from tieconv.text import count

_BYTES = 900_000  # a job summary holds 1 MiB, and may hold another step's
_NOTES = 20
_FINDINGS = 150  # of one model
_MARKS = {Level.ERROR: "❌&nbsp;error", Level.WARNING: "⚠️&nbsp;warning", Level.NOTE: "ℹ️&nbsp;note"}
_WORD = re.compile(r"[A-Za-z]+(?:['-][A-Za-z]+)*")  # letters alone: GH-1 and the like are links to GitHub
_NUMBER = re.compile(r"\d+(?:[.,–]\d+)*%?")
_TRIMMED = re.compile(r"([(\"']*)(.*?)([)\"',;:.]*)", re.DOTALL)


def render(report: CheckReport) -> str:
    """Return a table of the models, then the findings of each model, the worst first."""
    none = " No settings file." if report.settings == "" else ""
    blocks = [f"### {'❌' if report.failed else '✅'} tieconv check: {_prose(view.summary(report))}{none}"]
    models = view.worst_first(report.models)
    if models:
        blocks += ["", "| model | result | errors | warnings | notes | waived |", "|---|---|--:|--:|--:|--:|"]
        blocks += _bounded((partial(_row, model, report) for model in models), _BYTES // 3, "model")
    listed = [model for model in models if model.findings or model.failure or model.fixes]
    blocks += _bounded((partial(_section, model, report) for model in listed), _BYTES * 2 // 3, "model")
    if report.not_checked:
        blocks.append(f"\n**not checked:** {_prose(view.line(', '.join(report.not_checked)))}")
    blocks += [f"\n**note:** {_prose(view.line(note))}" for note in report.notes[:_NOTES]]
    return "\n".join(blocks)


def _bounded(parts: Iterable[Callable[[], str]], room: int, noun: str, more: int = 0) -> Iterator[str]:
    """Yield the parts that fit into ``room`` bytes, then the number of the others, including ``more``.

    The parts that do not fit are not rendered.
    """
    left, full = more, False
    for part in parts:
        text = "" if full else part()
        room -= len(text.encode())
        if room < 0:
            left, full = left + 1, True
        else:
            yield text
    if left:
        yield f"\n… and {count(left, f'more {noun}')}: see `tieconv check --format json`\n"


def _row(model: CheckedModel, report: CheckReport) -> str:
    counts = view.levels(model.open)
    verdict = "❌ failed" if report.fails(model) else "✅ passed"
    figures = [str(counts[level]) for level in Level]
    if model.failure:
        verdict, figures = f"❌ {view.trouble(model)}", [""] * len(figures)
    return _cells(_name(view.line(model.source)), verdict, *figures, str(len(view.waived(model))))


def _section(model: CheckedModel, report: CheckReport) -> str:
    counts = view.levels(model.open)
    title = view.trouble(model) if model.failure else view.counted(counts)
    if view.waived(model):
        title += f", {len(view.waived(model))} waived"
    opened = " open" if report.fails(model) else ""
    # Inside an HTML block GitHub reads no Markdown, and escaped text stays text.
    summary = f"<details{opened}><summary><code>{html.escape(view.line(model.source))}</code>: {title}</summary>"
    return "\n".join(["", summary, "", *_details(model), "", "</details>"])


def _details(model: CheckedModel) -> Iterator[str]:
    if model.failure:
        yield f"**error:** {_prose(view.line(model.failure.message))}"
        if model.failure.hint:
            yield f"\n**hint:** {_prose(view.line(model.failure.hint))}"
        return
    if model.findings:
        yield "| level | rule | file | finding |\n|---|---|---|---|"
    entries = [*model.open, *view.waived(model)]
    shown = entries[:_FINDINGS]
    yield from _bounded(
        (partial(_finding, entry) for entry in shown), _BYTES // 4, "finding", len(entries) - len(shown)
    )
    for fix in model.fixes[:_NOTES]:
        refused = f"not fixed ({_prose(view.line(fix.refusal))})" if fix.refusal else "fixed"
        yield f"\n{refused}: {_name(view.command(fix.command))}"


def _finding(entry: CheckedFinding) -> str:
    finding = entry.finding
    text = _prose(view.line(finding.message))
    if finding.remedy:
        review = "" if finding.remedy.safe else f" {REVIEW_FIRST}"
        first = f"{_prose(finding.first_step)}; if tied: " if finding.first_step else ""
        text += f"<br>next: {first}{_name(view.command(finding.remedy.command))}{review}"
    elif step := finding.next_step:
        text += f"<br>next: {_name(step)}"
    level = _MARKS[finding.level]
    if entry.waiver:
        level = f"waived {finding.level}"
        text += f"<br>waived by {_prose(view.line(entry.waiver.sentence))}"
    return _cells(level, _name(view.line(finding.rule)), _name(view.line(entry.file)), text)


def _cells(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _prose(text: str) -> str:
    return " ".join(_word(word) for word in text.split(" "))


def _word(word: str) -> str:
    match = _TRIMMED.fullmatch(word)
    assert match is not None
    before, inner, after = match.groups()
    bare = not inner or _NUMBER.fullmatch(inner) or (_WORD.fullmatch(inner) and inner.lower() != "www")
    return before + (inner if bare else _name(inner)) + after


def _name(text: str) -> str:
    """Return a code span that its content cannot end.

    Text with characters that a code span in a table cannot hold becomes entities.
    """
    if not text:
        return ""
    if re.search(r"[`|\\]", text) or text != text.strip():
        # Replace each character that Markdown, HTML or GitHub may interpret with an entity.
        # GitHub decodes entities before it looks for mentions, so ``@`` becomes ``\x40``, as in `shown`.
        return re.sub(r"[^A-Za-z0-9 ,;()\"'…-]", _entity, text)
    return f"`{text}`"


def _entity(match: re.Match[str]) -> str:
    character = match.group()
    if character == "@":
        return "&#92;x40"
    return f"&#{ord(character)};" if character.isascii() else character
