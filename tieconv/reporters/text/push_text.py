"""Render a push as text, and as the description of its pull request."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.results.push import Effect, FileChange, Push
from tieconv.reporters.text.columns import Paint, columns, plain
from tieconv.text import count, shown, size
from tieconv.version import VERSION

_MARKUP = re.compile(r"([\\`*_{}\[\]<>#!@~$&])")
_LISTED = 20
_VERBS = {"add": "added", "replace": "replaced", "delete": "deleted"}


def render(push: Push, paint: Paint = plain) -> str:
    """Return the plan: the target, the files, and the title and description of the commit."""
    kind = "a pull request" if push.pull_request else f"a commit on {shown(push.revision or 'main')}"
    head = f"{paint(f'push {shown(push.directory)}', 'heading')}: {kind} to hf://{push.repo} at {push.commit}"
    rows = [(change.kind, shown(change.name), size(change.bytes)) for change in push.changes]
    lines = columns(rows) if rows else ["  no file differs"]
    if push.left_out:
        lines += [
            "",
            "  not pushed (--include NAME adds a file):",
            *(f"    {shown(name)}" for name in push.left_out[:_LISTED]),
        ]
        if len(push.left_out) > _LISTED:
            lines.append(f"    and {count(len(push.left_out) - _LISTED, 'more file')}")
    return "\n".join([head, *lines, "", f"  {push.title}", "", *_indented(push.description)])


def _indented(text: str) -> Iterator[str]:
    return (f"  {line}".rstrip() for line in text.splitlines())


def title(changes: Iterable[FileChange]) -> str:
    """Return the first line of the commit message."""
    kinds = [change.kind for change in changes]
    parts = [f"{count(kinds.count(kind), 'file')} {verb}" for kind, verb in _VERBS.items() if kind in kinds]
    return f"tieconv: {', '.join(parts)}"


def description(effects: Iterable[Effect], changes: Iterable[FileChange], before: Inspection, after: Inspection) -> str:
    """Return the plan in Markdown: tensors and config values, files, and the ties before and after."""
    lines = ["| | tensor or value | |", "|---|---|---|"]
    lines += [f"| {effect.kind} | {_named(effect)} | {cell(effect.note)} |" for effect in effects]
    lines += ["", "| file | change | bytes |", "|---|---|---:|"]
    lines += [f"| {code(change.name)} | {_VERBS[change.kind]} | {change.bytes:,} |" for change in changes]
    lines += ["", "| | before | after |", "|---|---|---|"]
    lines += [f"| {fact} | {old} | {new} |" for fact, old, new in _facts(before, after)]
    lines += ["", f"tieconv {VERSION} compared these files with commit {before.checkpoint.revision}."]
    return "\n".join(lines)


def _facts(before: Inspection, after: Inspection) -> Iterator[tuple[str, str, str]]:
    pair = (before, after)
    old, new = (inspection.config.verdict for inspection in pair)
    yield "config", old, new
    old, new = (size(inspection.bytes_stored) for inspection in pair)
    yield "stored", old, new
    states = [
        {member.name: str(member.state) for tie in inspection.ties for member in tie.members} for inspection in pair
    ]
    for name in sorted(states[0].keys() | states[1].keys()):
        yield code(name), states[0].get(name, "—"), states[1].get(name, "—")
    findings = [", ".join(sorted({finding.rule for finding in inspection.findings})) or "none" for inspection in pair]
    yield "findings", findings[0], findings[1]


def _named(effect: Effect) -> str:
    return effect.name if effect.kind in ("keep", "format") else code(effect.name)


def code(name: str) -> str:
    """Return a name from a file as a code span that Markdown cannot misread."""
    return f"`{shown(name).replace('`', 'ˋ').replace('|', '¦')}`"


def cell(text: str) -> str:
    """Return text with names from files as a table cell that Markdown cannot misread."""
    return _MARKUP.sub(r"\\\1", shown(text, 400)).replace("|", "¦")
