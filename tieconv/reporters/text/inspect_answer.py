"""The first three lines of an inspection: whether the head is tied, what is wrong, and what to run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tieconv.checkpoint.finding import REVIEW_FIRST
from tieconv.reporters.text.columns import LEVEL_STYLES, Paint, wrapped
from tieconv.text import count

if TYPE_CHECKING:
    from tieconv.checkpoint.finding import Finding
    from tieconv.checkpoint.inspection import Inspection


def answer(inspection: Inspection, paint: Paint, width: int | None) -> Iterator[str]:
    """Yield the three lines. A finding longer than ``width`` is cut, because the report repeats it below."""
    sentence = inspection.config.effect or inspection.config.why
    yield from wrapped(sentence, "", width)
    by_level: dict[str, list[Finding]] = {level: [] for level in LEVEL_STYLES}
    for finding in inspection.findings:
        by_level[finding.level].append(finding)
    present = {level: findings for level, findings in by_level.items() if findings}
    if not present:
        yield paint("No findings.", "good")
        yield "Run: nothing."
        return
    counts = ", ".join(count(len(findings), level) for level, findings in present.items())
    level, worst = next(iter(present.items()))
    yield paint(_cut(f"{counts}: {worst[0].message}", width), LEVEL_STYLES[level])
    yield f"Run: {_next(worst, inspection.findings)}"


def _next(worst: Sequence[Finding], findings: Sequence[Finding]) -> str:
    """Return the first remedy of the worst findings, else the command that explains the first finding.

    If only predictions of loaders are that bad, no explanation helps: it returns the first remedy of any finding.
    """
    about_files = [finding for finding in worst if not finding.rule.startswith("CON")]
    remedy = next((finding.remedy for finding in (worst if about_files else findings) if finding.remedy), None)
    if remedy is None and not about_files and str(worst[0].level) == "error":
        return "nothing. No command of tieconv helps these loaders."
    if remedy is None:
        return f"tieconv explain {(about_files or worst)[0].rule}"
    return remedy.command if remedy.safe else f"{remedy.command} {REVIEW_FIRST}"


def _cut(line: str, width: int | None) -> str:
    return line if width is None or len(line) <= width else f"{line[: width - 1].rstrip()}…"
