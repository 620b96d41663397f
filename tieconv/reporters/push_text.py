"""A push for people, and as the description of its pull request."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.push import FileChange, Push
from tieconv.reporters.layout import Paint, columns, plain
from tieconv.text import count, shown, size

_VERBS = {"add": "added", "replace": "replaced", "delete": "deleted"}


def render(push: Push, paint: Paint = plain) -> str:
    """The plan: where to, the files and the words."""
    kind = "a pull request" if push.pull_request else f"a commit on {shown(push.revision or 'main')}"
    head = f"{paint(f'push {shown(push.directory)}', 'heading')}: {kind} to hf://{push.repo} at {push.commit}"
    rows = [(change.kind, shown(change.name), size(change.bytes)) for change in push.changes]
    lines = columns(rows) if rows else ["  nothing differs"]
    return "\n".join([head, *lines, "", f"  {push.title}", "", *_indented(push.description)])


def _indented(text: str) -> Iterator[str]:
    return (f"  {line}".rstrip() for line in text.splitlines())


def title(changes: Iterable[FileChange]) -> str:
    """The first line of the commit."""
    kinds = [change.kind for change in changes]
    parts = [f"{count(kinds.count(kind), 'file')} {verb}" for kind, verb in _VERBS.items() if kind in kinds]
    return f"tieconv: {', '.join(parts)}"


def description(changes: Iterable[FileChange], before: Inspection, after: Inspection) -> str:
    """The plan in Markdown: the files, and what ties before and after."""
    lines = ["| file | change | bytes |", "|---|---|---:|"]
    lines += [f"| {code(change.name)} | {_VERBS[change.kind]} | {change.bytes:,} |" for change in changes]
    lines += ["", "| | before | after |", "|---|---|---|"]
    lines += [f"| {what} | {old} | {new} |" for what, old, new in _facts(before, after)]
    lines += ["", f"before: commit {before.checkpoint.revision}; after: as `tieconv inspect` finds the directory."]
    return "\n".join(lines)


def _facts(before: Inspection, after: Inspection) -> Iterator[tuple[str, str, str]]:
    pair = (before, after)
    old, new = ("tied" if one.config.effective else "not tied" for one in pair)
    yield "config", old, new
    old, new = (size(one.bytes_stored) for one in pair)
    yield "stored", old, new
    states = [{member.name: str(member.state) for tie in one.ties for member in tie.members} for one in pair]
    for name in sorted(states[0].keys() | states[1].keys()):
        yield code(name), states[0].get(name, "—"), states[1].get(name, "—")
    findings = [", ".join(sorted({found.rule for found in one.findings})) or "none" for one in pair]
    yield "findings", findings[0], findings[1]


def code(name: str) -> str:
    """A name from a file as code that no Markdown reader takes for more."""
    return f"`{shown(name).replace('`', 'ˋ').replace('|', '¦')}`"
