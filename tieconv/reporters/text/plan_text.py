"""Render a plan as text: the tensors and files that change, and the bytes read, written and linked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_never

from tieconv.checkpoint import weight_file
from tieconv.checkpoint.write_plan import (
    AverageTensor,
    CopyTensor,
    DropConfig,
    DropFile,
    DropTensor,
    FillTensor,
    KeepTensor,
    LinkFile,
    Operation,
    Outcome,
    Plan,
    RemoteTransfer,
    RenameTensor,
    ResizeTensor,
    ScaleTensor,
    SetConfig,
    SetMetadata,
    SetTensor,
    ShareTensor,
    TrimStorage,
)
from tieconv.reporters.text.columns import Paint, columns, plain, wrapped
from tieconv.text import count, shown, size

_REMOVED = {"convert": "its tensors are in the new files", "reindex": "the new index does not list it"}


def render(
    outcome: Outcome,
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
    lines = wrapped(f"{paint(plan.command, 'heading')} {shown(plan.checkpoint.source)}: {plan.summary}", "", width)
    lines += columns(_rows(outcome, hardlink, in_place), width=width)
    for note in plan.notes:
        first, *rest = wrapped(shown(note, 400), "  note: ", width)
        lines += [first.replace("note", paint("note", "warning"), 1), *rest]
    return "\n".join(lines)


def _rows(outcome: Outcome, hardlink: bool, in_place: bool) -> Iterator[tuple[str, ...]]:
    plan = outcome.plan
    unchanged, left, moved = 0, 0, _moved(plan)
    if moved:
        yield "rename", count(len(moved), "tensor"), f"{_prefix_change(moved[0])}, byte for byte"
    for operation in plan.operations:
        if isinstance(operation, KeepTensor):
            unchanged += 1
        elif isinstance(operation, DropTensor) and operation.name not in plan.checkpoint.tensors:
            left += 1
        elif not (moved and isinstance(operation, RenameTensor)):
            yield _row(plan, operation)
    if unchanged or not moved:
        yield "keep", count(unchanged, "tensor"), "byte for byte"
    if left:
        yield "leave out", count(left, "tensor"), "not part of the model"
    yield from _files(plan, hardlink, in_place)
    yield "bytes", _figures(plan, outcome.remote)


def _figures(plan: Plan, remote: RemoteTransfer | None) -> str:
    if remote is None:
        return f"{size(plan.bytes_read)} read, {size(plan.bytes_written)} written, {size(plan.bytes_linked)} linked"
    moved = f"{size(remote.bytes_read)} read, {size(remote.bytes_uploaded)} uploaded"
    if remote.method == "server_copy":
        return f"{moved}, {size(remote.bytes_copied)} copied by the server"
    return f"{moved} from a temporary directory, because {remote.why}"


def _prefix_change(renamed: RenameTensor) -> str:
    if renamed.to.endswith(renamed.name):
        return f"each name gets the prefix {shown(renamed.to.removesuffix(renamed.name))}"
    return f"each name loses the prefix {shown(renamed.name.removesuffix(renamed.to))}"


def _moved(plan: Plan) -> list[RenameTensor]:
    """Return the renamings if all add or remove one prefix and there are more than two, else an empty list."""
    renamed = [operation for operation in plan.operations if isinstance(operation, RenameTensor)]
    added = {to.removesuffix(name) if to.endswith(name) else None for name, to in _pairs(renamed)}
    removed = {name.removesuffix(to) if name.endswith(to) else None for name, to in _pairs(renamed)}
    is_common = any(len(prefixes) == 1 and None not in prefixes for prefixes in (added, removed))
    return renamed if len(renamed) > 2 and is_common else []


def _pairs(renamed: list[RenameTensor]) -> Iterator[tuple[str, str]]:
    return ((operation.name, operation.to) for operation in renamed)


def _row(plan: Plan, operation: Operation) -> tuple[str, ...]:
    match operation:
        case DropTensor(name, because):
            return "drop", shown(name), f"{size(plan.checkpoint.tensors[name].nbytes)}, {shown(because)}"
        case CopyTensor(name, source):
            return "add", shown(name), f"{size(plan.checkpoint.tensors[source].nbytes)}, a copy of {shown(source)}"
        case RenameTensor(name, to):
            return "rename", shown(name), f"to {shown(to)}"
        case FillTensor(name, dtype, shape):
            return "add", shown(name), f"all zero, {list(shape)} {dtype}"
        case ScaleTensor(name, source, exponent):
            return "add", shown(name), f"{shown(source)} times 2**{exponent}, exact"
        case AverageTensor(name, first, second):
            return "mean", shown(name), f"of {shown(first)} and {shown(second)}, each element rounded once"
        case SetTensor(name, because):
            return "change", shown(name), shown(because)
        case ResizeTensor(name, before, after):
            return "resize", shown(name), f"{list(before)} becomes {list(after)}, {_resized(before, after)}"
        case ShareTensor(name, source):
            return (
                "share",
                shown(name),
                f"{size(plan.checkpoint.tensors[name].nbytes)}, stored once with {shown(source)}",
            )
        case TrimStorage(name, freed):
            return "trim", shown(name), f"{size(freed)} of its storage, which no tensor uses"
        case SetConfig(path, value, before, present):
            old = _json(before) if present else "absent"
            return "config", shown(path), f"{old} becomes {_json(value)}"
        case DropConfig(path, before):
            return "config", shown(path), f"removed; it was {_json(before)}"
        case SetMetadata(file, weight_file.KEY, None):
            return "metadata", shown(file), f"{weight_file.KEY} removed: the copy is no longer stored"
        case SetMetadata(file, key, None):
            return "metadata", shown(file), f"{shown(key)} removed: the tensor that it names is not stored"
        case SetMetadata(file, weight_file.KEY, value):
            names = ", ".join(map(shown, sorted(weight_file.names_in({weight_file.KEY: value or ""}))))
            return "metadata", shown(file), f"{weight_file.KEY} marks {names} as stored twice on purpose"
        case SetMetadata(file, key, value):
            return "metadata", shown(file), f"{shown(key)} becomes {shown(value)}"
        case KeepTensor(name):
            return "keep", shown(name), "byte for byte"
        case DropFile(name, bytes_):
            return "drop", shown(name), f"{size(bytes_)}, the old model in another format"
        case LinkFile(name, bytes_):
            return "copy", shown(name), size(bytes_)
    assert_never(operation)


def _resized(before: tuple[int, ...], after: tuple[int, ...]) -> str:
    old, new = next((old, new) for old, new in zip(before, after, strict=True) if old != new)
    rows = count(abs(new - old), "row" if len(before) == 2 and before[0] > 1 else "element")
    return f"{rows} added at the end" if new > old else f"{rows} removed at the end"


def _files(plan: Plan, hardlink: bool, in_place: bool) -> Iterator[tuple[str, ...]]:
    before = {file.name for file in plan.checkpoint.files}
    for output in plan.weights:
        verb = "rewrite" if output.name in before else "create"
        yield verb, shown(output.name), size(output.nbytes)
    for text in plan.texts:
        verb = "rewrite" if text.name in plan.checkpoint.states else "create"
        yield verb, shown(text.name), size(len(text.text.encode()))
    dropped = {operation.name for operation in plan.operations if isinstance(operation, DropFile)}
    for name in (name for name in plan.removed if name not in dropped):
        yield "remove" if in_place else "skip", shown(name), _REMOVED.get(plan.command, "it would hold no tensors")
    if plan.links:
        verb, manner = ("link", "hard links: both directories share the files") if hardlink else ("copy", "unchanged")
        yield verb, count(len(plan.links), "file"), f"{size(plan.bytes_linked)}, {manner}"


def _json(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_json, value))}]"
    return str(value).lower() if isinstance(value, bool) else shown(value)
