"""Render a plan as text: the tensors and files that change, and the bytes read, written and copied."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, assert_never

from tieconv.checkpoint import weight_file, write_plan
from tieconv.checkpoint.inspection import Inspection
from tieconv.reporters.text import Paint, columns, marked, notes, plain, wrapped
from tieconv.text import count, json_value, shown, size
from tieconv.version import VERSION

if TYPE_CHECKING:
    from tieconv.checkpoint.graph_plan import GraphOutcome, GraphPlan, SessionProof
    from tieconv.checkpoint.results.push import Effect, FileChange, Push

_REMOVED = {"convert": "its tensors are in the new files", "reindex": "the new index does not list it"}


def render(
    outcome: write_plan.Outcome | GraphOutcome,
    paint: Paint = plain,
    width: int | None = None,
    *,
    hardlink: bool = False,
    in_place: bool = False,
) -> str:
    """Return the plan without a newline at the end.

    Notes are wrapped to ``width`` columns if it is given. The plan removes files only ``in_place``. With another output
    the source keeps them, so the plan skips them.
    """
    plan = outcome.plan
    unchanged = "keep" if in_place else "link" if hardlink else "copy"
    if isinstance(outcome, write_plan.Outcome):
        source, rows = outcome.plan.checkpoint.source, _rows(outcome, unchanged)
    else:
        source, rows = outcome.plan.source, _graph_rows(outcome.plan, unchanged)
    lines = wrapped(f"{paint(plan.command, 'heading')} {shown(source)}: {plan.summary}", "", width)
    lines += columns(rows, width=width)
    return "\n".join([*lines, *notes(plan.notes, paint, width)])


def _rows(outcome: write_plan.Outcome, verb: str) -> Iterator[tuple[str, ...]]:
    plan = outcome.plan
    # The renamings if all add or remove one prefix and there are more than two, else an empty list.
    renamed = [entry for entry in plan.operations if isinstance(entry, write_plan.RenameTensor)]
    names = [(entry.name, entry.to) for entry in renamed]
    added = {to.removesuffix(name) if to.endswith(name) else None for name, to in names}
    removed = {name.removesuffix(to) if name.endswith(to) else None for name, to in names}
    is_common = any(len(prefixes) == 1 and None not in prefixes for prefixes in (added, removed))
    unchanged, left, moved = 0, 0, renamed if len(renamed) > 2 and is_common else []
    if moved:
        yield "rename", count(len(moved), "tensor"), f"{_prefix_change(moved[0])}, byte for byte"
    for operation in plan.operations:
        if isinstance(operation, write_plan.KeepTensor):
            unchanged += 1
        elif isinstance(operation, write_plan.DropTensor) and operation.name not in plan.checkpoint.tensors:
            left += 1
        elif not (moved and isinstance(operation, write_plan.RenameTensor)):
            yield _row(plan, operation)
    if unchanged or not moved:
        yield "keep", count(unchanged, "tensor"), "byte for byte"
    if left:
        yield "leave out", count(left, "tensor"), "not part of the model"
    yield from _files(plan, verb)
    yield "bytes", _figures(plan, verb) if outcome.remote is None else _remote_figures(outcome.remote)


def _figures(plan: write_plan.Plan | GraphPlan, verb: str) -> str:
    unchanged = {"copy": f", copies {size(plan.bytes_linked)}", "link": f", links {size(plan.bytes_linked)}"}
    return f"reads {size(plan.bytes_read)}, writes {size(plan.bytes_written)}{unchanged.get(verb, '')}"


def _remote_figures(remote: write_plan.RemoteTransfer) -> str:
    moved = f"{size(remote.bytes_read)} read, {size(remote.bytes_uploaded)} uploaded"
    if remote.method == "server_copy":
        return f"{moved}, {size(remote.bytes_copied)} copied by the server"
    return f"{moved} from a temporary directory, because {remote.why}"


def _prefix_change(renamed: write_plan.RenameTensor) -> str:
    if renamed.to.endswith(renamed.name):
        return f"each name gets the prefix {shown(renamed.to.removesuffix(renamed.name))}"
    return f"each name loses the prefix {shown(renamed.name.removesuffix(renamed.to))}"


def _row(plan: write_plan.Plan, operation: write_plan.Operation) -> tuple[str, ...]:
    match operation:
        case write_plan.DropTensor(name, because):
            return "drop", shown(name), f"{size(plan.checkpoint.tensors[name].nbytes)}, {shown(because)}"
        case write_plan.CopyTensor(name, source):
            return "add", shown(name), f"{size(plan.checkpoint.tensors[source].nbytes)}, a copy of {shown(source)}"
        case write_plan.RenameTensor(name, to):
            return "rename", shown(name), f"to {shown(to)}"
        case write_plan.FillTensor(name, dtype, shape):
            return "add", shown(name), f"all zero, {list(shape)} {dtype}"
        case write_plan.ScaleTensor(name, source, exponent):
            return "add", shown(name), f"{shown(source)} times 2**{exponent}, exact"
        case write_plan.AverageTensor(name, first, second):
            return "mean", shown(name), f"of {shown(first)} and {shown(second)}, each element rounded once"
        case write_plan.SetTensor(name, because):
            return "change", shown(name), shown(because)
        case write_plan.ResizeTensor(name, before, after):
            return "resize", shown(name), f"{list(before)} becomes {list(after)}, {_resized(before, after)}"
        case write_plan.ShareTensor(name, source):
            return (
                "share",
                shown(name),
                f"{size(plan.checkpoint.tensors[name].nbytes)}, stored once with {shown(source)}",
            )
        case write_plan.TrimStorage(name, freed):
            return "trim", shown(name), f"{size(freed)} of its storage, which no tensor uses"
        case write_plan.SetConfig(path, value, before, present):
            return "config", shown(path), f"{json_value(before, present)} becomes {json_value(value)}"
        case write_plan.DropConfig(path, before):
            return "config", shown(path), f"removed; it was {json_value(before)}"
        case write_plan.SetMetadata(file, weight_file.KEY, None):
            return "metadata", shown(file), f"{weight_file.KEY} removed: the file no longer has the copy"
        case write_plan.SetMetadata(file, key, None):
            return "metadata", shown(file), f"{shown(key)} removed: the tensor that it names is not stored"
        case write_plan.SetMetadata(file, weight_file.KEY, value):
            names = ", ".join(map(shown, sorted(weight_file.names_in({weight_file.KEY: value or ""}))))
            return "metadata", shown(file), f"{weight_file.KEY} marks {names} as stored twice on purpose"
        case write_plan.SetMetadata(file, key, value):
            return "metadata", shown(file), f"{shown(key)} becomes {shown(value)}"
        case write_plan.KeepTensor(name):
            return "keep", shown(name), "byte for byte"
        case write_plan.DropFile(name, bytes_):
            return "drop", shown(name), f"{size(bytes_)}, the old model in another format"
        case write_plan.LinkFile(name, bytes_):
            return "copy", shown(name), size(bytes_)
    assert_never(operation)


def _resized(before: tuple[int, ...], after: tuple[int, ...]) -> str:
    old, new = next((old, new) for old, new in zip(before, after, strict=True) if old != new)
    rows = count(abs(new - old), "row" if len(before) == 2 and before[0] > 1 else "element")
    return f"{rows} added at the end" if new > old else f"{rows} removed at the end"


def _files(plan: write_plan.Plan, unchanged: str) -> Iterator[tuple[str, ...]]:
    before = {file.name for file in plan.checkpoint.files}
    for output in plan.weights:
        verb = "rewrite" if output.name in before else "create"
        yield verb, shown(output.name), size(output.nbytes)
    for text in plan.texts:
        verb = "rewrite" if text.name in plan.checkpoint.states else "create"
        yield verb, shown(text.name), size(len(text.text.encode()))
    dropped = {operation.name for operation in plan.operations if isinstance(operation, write_plan.DropFile)}
    for name in (name for name in plan.removed if name not in dropped):
        reason = _REMOVED.get(plan.command, "it would hold no tensors")
        yield "remove" if unchanged == "keep" else "skip", shown(name), reason
    if plan.links:
        manner = "hard links: both directories share the files" if unchanged == "link" else "unchanged"
        yield unchanged, count(len(plan.links), "file"), f"{size(plan.bytes_linked)}, {manner}"


# Render a plan for graphs as text.

_SHOWN = 4


def render_proofs(outcome: GraphOutcome, paint: Paint = plain, width: int | None = None) -> str:
    """Return a line for each session of the written graphs with what it holds, or an empty text without sessions."""
    lines: list[str] = []
    for proof in outcome.proofs:
        if proof.proved:
            held = ", ".join(
                f"{shown(name)} {'once' if copies == 1 else f'{copies} times'}" for name, copies in proof.copies
            )
            lines.append(f"  {paint('proved', 'good')}: a session of {shown(proof.graph)} holds {held}")
            lines += [
                f"  note: the CPU provider also holds a copy of {shown(name)} in a wider type, to compute with it"
                for name in proof.casts
            ]
            lines += _runs(proof, paint, width)
        else:
            text = shown(f"{proof.graph}: {proof.why_not}", 400)
            lines += marked(text, "  not proved: ", width, paint, "not proved", "warning")
    return "\n".join(lines)


def _runs(proof: SessionProof, paint: Paint, width: int | None) -> list[str]:
    """Return what was run in sessions of both graphs, and what was not."""
    runs = proof.runs
    if runs is None:
        return []
    lines: list[str] = []
    if runs.equal:
        sentence = f"{count(runs.equal, 'run')} gave the same bits as the source, on 1 and 2 threads"
        text = f"{proof.graph}: {sentence}: {', '.join(runs.cases)}"
        lines += marked(text, "  proved: ", width, paint, "proved", "good")
    for word, cases in (("other bits", runs.differing), ("not run", runs.not_run)):
        if cases:
            more = f"; and {len(cases) - _SHOWN:,} more" if len(cases) > _SHOWN else ""
            text = f"{proof.graph}: {'; '.join(map(shown, cases[:_SHOWN]))}{more}"
            lines += marked(text, f"  {word}: ", width, paint, word, "warning")
    return lines


def _graph_rows(plan: GraphPlan, unchanged: str) -> Iterator[tuple[str, ...]]:
    if len(plan.names) > 1:
        yield from (("graph", shown(name), plan.answer(name)) for name in plan.names)
    for matrix in plan.matrices:
        if matrix.done:
            form = f"{matrix.dtype} {list(matrix.shape)}"
            own = matrix.stored_before if plan.command == "untie" else matrix.stored_after
            yield "keep", shown(matrix.initializer), f"{size(own)}, {form}"
            for matrix_name in matrix.dropped:
                if plan.command == "untie":
                    yield "add", shown(matrix_name), f"a transposed copy of {shown(matrix.initializer)}"
                else:
                    yield "drop", shown(matrix_name), f"copy of {shown(matrix.initializer)} ({', '.join(matrix.kinds)})"
            if matrix.nodes:
                head_form = f", head as {matrix.form}" if matrix.form else ""
                yield "rewrite", count(len(matrix.nodes), "node"), f"{shown(', '.join(matrix.nodes))}{head_form}"
    for name in plan.changed:
        yield "rewrite", shown(name), "graph"
    if not plan.changed:
        yield "copy", shown(plan.source), "the graph and its weights, unchanged"
        return
    yield "on disk", size(plan.bytes_before), f"becomes {size(plan.bytes_after)}"
    before = sum(matrix.held_before for matrix in plan.matrices)
    after = sum(matrix.held_after for matrix in plan.matrices)
    if before != after:
        yield "in session", size(before), f"for these matrices becomes {size(after)}"
    yield "bytes", _figures(plan, unchanged)


# Render a push as text, and as the description of its pull request.

_MARKUP = re.compile(r"([\\`*_{}\[\]<>#!@~$&])")
_LISTED = 20
_VERBS = {"add": "added", "replace": "replaced", "delete": "deleted"}


def render_push(push: Push, paint: Paint = plain) -> str:
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
    return "\n".join(
        [head, *lines, "", f"  {push.title}", "", *(f"  {line}".rstrip() for line in push.description.splitlines())]
    )


def title(changes: Iterable[FileChange]) -> str:
    """Return the first line of the commit message."""
    kinds = [change.kind for change in changes]
    parts = [f"{count(kinds.count(kind), 'file')} {verb}" for kind, verb in _VERBS.items() if kind in kinds]
    return f"tieconv: {', '.join(parts)}"


def description(effects: Iterable[Effect], changes: Iterable[FileChange], before: Inspection, after: Inspection) -> str:
    """Return the plan in Markdown: tensors and config values, files, and the ties before and after."""
    lines = ["| | tensor or value | |", "|---|---|---|"]
    named = ((effect, effect.name if effect.kind in ("keep", "format") else code(effect.name)) for effect in effects)
    lines += [f"| {effect.kind} | {name} | {cell(effect.note)} |" for effect, name in named]
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


def code(name: str) -> str:
    """Return a name from a file as a code span that Markdown cannot misread."""
    return f"`{shown(name).replace('`', 'ˋ').replace('|', '¦')}`"


def cell(text: str) -> str:
    """Return text with names from files as a table cell that Markdown cannot misread."""
    return _MARKUP.sub(r"\\\1", shown(text, 400)).replace("|", "¦")
