"""What every format of the gate's answer says in the same way: which models failed, how often, in which words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from tieconv.checkpoint.finding import Level
from tieconv.checkpoint.results.checked import RANK, CheckedFinding, CheckedModel, CheckReport, Fix
from tieconv.text import count, shown

LIMIT = 1000
"""Characters of one message: what GitHub's code scanning takes, and more than any rule says."""


def worst_first(models: Iterable[CheckedModel]) -> list[CheckedModel]:
    """Unreadable models, then by the worst open finding, clean ones last; else in the order given."""
    return sorted(models, key=_badness)


def _badness(model: CheckedModel) -> int:
    return -1 if model.failure else min((RANK[entry.finding.level] for entry in model.open), default=3)


def open_findings(report: CheckReport) -> list[tuple[CheckedModel, CheckedFinding]]:
    """The findings that count, of every model, the worst first."""
    pairs = [(model, entry) for model in report.models for entry in model.open]
    return sorted(pairs, key=lambda pair: RANK[pair[1].finding.level])


def levels(entries: Iterable[CheckedFinding]) -> Counter[Level]:
    """How many there are of each level."""
    return Counter(entry.finding.level for entry in entries)


def waived(model: CheckedModel) -> list[CheckedFinding]:
    """The findings that do not count."""
    return [entry for entry in model.findings if entry.waiver]


def trouble(model: CheckedModel) -> str:
    """What could not be done with a model that has a failure: it was read where there are findings."""
    return "could not be fixed" if model.findings else "could not be read"


def counted(number_of: Counter[Level]) -> str:
    """``1 error, 2 warnings``; ``no findings``."""
    return ", ".join(count(number_of[level], str(level)) for level in Level if number_of[level]) or "no findings"


def summary(report: CheckReport) -> str:
    """One line over all models."""
    total = len(report.models)
    bad = report.failed
    stopped = Counter(trouble(model) for model in report.models if model.failure)
    verdict = f"{bad} of {count(total, 'model')} failed" if bad else f"{count(total, 'model')} passed"
    parts = [f"{verdict}: {counted(levels(entry for model in report.models for entry in model.open))}"]
    parts += [f"{number} {reason}" for reason, number in stopped.items()]
    dropped = sum(len(waived(model)) for model in report.models)
    if dropped:
        parts.append(f"{dropped} waived")
    return f"{'; '.join(parts)} (fails on: {report.fail_on})"


def line(text: object, limit: int = LIMIT) -> str:
    """``text`` in one line that is safe to print, at most ``limit`` characters with its escapes."""
    safe = shown(text, limit)
    return safe if len(safe) <= limit else f"{safe[: limit - 1]}…"


def command(text: str) -> str:
    """A command in full: one that was cut would do something else."""
    return shown(text, len(text))


def fixed(fix: Fix) -> str:
    """What `--fix` did, or why it did not."""
    return (
        f"not fixed: {line(fix.refusal)}: {command(fix.command)}" if fix.refusal else f"fixed: {command(fix.command)}"
    )
