"""The first three lines of an inspection: is the head tied, is anything wrong, what to run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tieconv.checkpoint.finding import REVIEW_FIRST
from tieconv.reporters.text.columns import Paint, wrapped
from tieconv.text import count

if TYPE_CHECKING:
    from tieconv.checkpoint.finding import Finding
    from tieconv.checkpoint.inspection import Inspection

STYLES = {"error": "error", "warning": "warning", "note": "quiet"}


def answer(inspection: Inspection, paint: Paint, width: int | None) -> Iterator[str]:
    """Yield the three lines; a sentence that is longer than ``width`` is cut, since it is repeated below."""
    sentence = inspection.config.effect or inspection.config.why
    yield from wrapped(sentence, "", width)
    worst = next((_of_level(inspection, level) for level in STYLES if _of_level(inspection, level)), ())
    if not worst:
        yield paint("No findings.", "good")
        yield "Run: nothing."
        return
    counts = ", ".join(count(len(findings), level) for level in STYLES if (findings := _of_level(inspection, level)))
    level = str(worst[0].level)
    yield paint(_cut(f"{counts}: {worst[0].message}", width), STYLES[level])
    yield f"Run: {_next(worst, inspection)}"


def _of_level(inspection: Inspection, level: str) -> tuple[Finding, ...]:
    return tuple(finding for finding in inspection.findings if finding.level == level)


def _next(worst: tuple[Finding, ...], inspection: Inspection) -> str:
    """The remedy of the first of the worst findings that has one, else what explains the first."""
    remedy = next((finding.remedy for finding in worst if finding.remedy), None)
    if remedy is None:
        return f"tieconv explain {worst[0].rule}"
    return remedy.command if remedy.safe else f"{remedy.command} {REVIEW_FIRST}"


def _cut(line: str, width: int | None) -> str:
    return line if width is None or len(line) <= width else f"{line[: width - 1].rstrip()}…"
