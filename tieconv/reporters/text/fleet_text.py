"""The report on a fleet as text: counts, rules, and the findings that are new or fixed."""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.results.fleet import FleetReport, Since
from tieconv.checks.registry import TITLES
from tieconv.reporters.text import LEVEL_STYLES, Paint, columns, next_lines, plain, wrapped
from tieconv.text import count, shown, size

_MOST = 20
"""The most changes of each kind, and the most models. JSON has them all."""


def render(report: FleetReport, paint: Paint = plain, width: int | None = None) -> str:
    """Return the report as lines."""
    return "\n".join((*_head(report, paint), *_since(report.since, paint, width), *_worst(report, paint, width)))


def headline(report: FleetReport) -> str:
    """Return the first sentence: how many models there are, and how many fail."""
    parts = [f"{count(len(report.checked.models), 'model')} ({size(report.bytes)}): {report.failed:,} failed"]
    if report.unread:
        parts.append(f"{report.unread:,} of them could not be read")
    if report.unfinished:
        parts.append(f"{report.unfinished:,} more not finished")
    if report.checked.not_checked:
        parts.append(f"{count(len(report.checked.not_checked), 'model')} below not checked")
    if report.checked.settings is not None:
        parts.append(f"settings: {shown(report.checked.settings)}" if report.checked.settings else "no settings file")
    return ", ".join(parts)


def _head(report: FleetReport, paint: Paint) -> Iterator[str]:
    yield paint(headline(report), "heading")
    rows = [("rule", "level", "models", *(["before"] if report.since else []))]
    for rule in report.rules:
        before = [f"{rule.before or 0:,}"] if report.since else []
        rows.append((TITLES.get(rule.rule, rule.rule), rule.level, f"{rule.models:,}", *before))
    if report.rules:
        yield from columns(rows)
    if report.uncompared:
        yield f"{count(report.uncompared, 'model')} with tied names that were not compared; to compare: --depth full"


def _worst(report: FleetReport, paint: Paint, width: int | None) -> Iterator[str]:
    """Yield the models that fail, each with its rules and the first command that repairs something."""
    if not report.worst:
        return
    yield ""
    yield paint("models that fail, the worst first", "heading")
    for model in report.worst[:_MOST]:
        source, counting = shown(model.source), report.counting(model)
        rules = " ".join(dict.fromkeys(finding.rule for finding in counting))
        why = model.failure.message.removeprefix(f"{source}: ") if model.failure else f"{rules}: {counting[0].message}"
        yield from wrapped(shown(why, 400), f"  {source}: ", width)
        if repaired := next((finding for finding in counting if finding.remedy), None):
            assert repaired.remedy is not None
            yield from next_lines(repaired, repaired.remedy, "    ", width)
        elif counting:
            yield f"    next: tieconv explain {counting[0].rule}"
        yield from wrapped(shown(model.failure.hint, 400), "    hint: ", width) if model.failure else ()
    if len(report.worst) > _MOST:
        yield f"  and {len(report.worst) - _MOST:,} more (use --json for all)"


def _since(since: Since | None, paint: Paint, width: int | None) -> Iterator[str]:
    if since is None:
        return
    new, fixed, still = (since.of(state) for state in ("new", "fixed", "still"))
    yield ""
    yield paint(
        f"since {shown(since.directory)}: {len(new):,} new, {len(fixed):,} fixed, {len(still):,} still", "heading"
    )
    if since.added or since.removed:
        yield f"  {count(since.added, 'model')} added, {count(since.removed, 'model')} removed"
    for changes in (new, fixed):
        rows = [
            (paint(change.state, "quiet"), paint(change.level, LEVEL_STYLES[change.level]), change.rule,
             f"{shown(change.source)}: {shown(change.message, 400)}")
            for change in changes[:_MOST]
        ]  # fmt: skip
        yield from columns(rows, width=width)
        if len(changes) > _MOST:
            yield f"  and {len(changes) - _MOST:,} more (use --json for all)"
