"""Describe the change from one model to another, tensor by tensor and config value by config value."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from tieconv.checkpoint.inspection import Inspection, State
from tieconv.checkpoint.model_files import ByteReader
from tieconv.checkpoint.results.push import Effect
from tieconv.checkpoint.tie_group import BiasState
from tieconv.checkpoint.value_type import record
from tieconv.checkpoint.weight_file import TensorRecord
from tieconv.comparison.differences import compare_configs
from tieconv.comparison.pair import Pair, Relations, Source
from tieconv.text import count, shown, size

_EQUAL = (State.IDENTICAL, State.ALIASED)


@record
class _Sides:
    """The model before and after, the unchanged files, and ``relations`` if bytes can be compared."""

    before: Inspection
    after: Inspection
    same_files: Collection[str]
    relations: Relations | None


def effects(
    before: Inspection,
    after: Inspection,
    readers: tuple[ByteReader, ByteReader],
    same_files: Collection[str],
    *,
    compares: bool,
) -> tuple[Effect, ...]:
    """Return the effect on every tensor and config value. ``same_files`` have equal hashes.

    With ``compares``, tensors in other files are compared byte for byte; else the effect says that they were not.
    Raises `UnreadableError` if bytes cannot be read.
    """
    relations = Relations(before.checkpoint, after.checkpoint, Pair(*readers)) if compares else None
    sides = _Sides(before, after, same_files, relations)
    return (*_format(sides), *_tensors(sides), *_config(sides))


def _format(sides: _Sides) -> Iterator[Effect]:
    old, new = (side.checkpoint.format for side in (sides.before, sides.after))
    if old != new:
        yield Effect("format", "weights", f"{old} becomes {new}")


def _tensors(sides: _Sides) -> Iterator[Effect]:
    before, after = (side.checkpoint.tensors for side in (sides.before, sides.after))
    for name in sorted(before.keys() - after.keys()):
        yield Effect("drop", name, _noted(before[name], _twin(sides.before, name, after)))
    for name in sorted(after.keys() - before.keys()):
        yield Effect("add", name, _noted(after[name], _twin(sides.after, name, after) or _zero(sides.after, name)))
    equal, uncompared = 0, 0
    for name in sorted(before.keys() & after.keys()):
        difference = _changed(sides, before[name], after[name])
        if difference:
            yield Effect("change", name, difference)
        elif difference is None:
            uncompared += 1
        else:
            equal += 1
    if equal:
        yield Effect("keep", count(equal, "tensor"), "byte for byte")
    if uncompared:
        yield Effect("keep", count(uncompared, "tensor"), "by name, type and shape; their bytes were not compared")


def _noted(record: TensorRecord, note: str) -> str:
    return ", ".join(filter(None, (f"{list(record.shape)} {record.dtype}, {size(record.nbytes)}", note)))


def _twin(inspection: Inspection, name: str, stored: Collection[str]) -> str:
    """Return in words the tensor in ``stored`` with the same bytes, or an empty text if none is proved."""
    for tie in inspection.ties:
        equal = [member.name for member in tie.members if member.state in (State.CANONICAL, *_EQUAL)]
        twin = next((member_name for member_name in equal if member_name != name and member_name in stored), None)
        if name in equal and twin:
            return f"the bytes of {shown(twin)}"
    for duplicate in inspection.duplicates:
        twin = next(
            (member_name for member_name in duplicate.tensors if member_name != name and member_name in stored), None
        )
        if name in duplicate.tensors and duplicate.kind in _EQUAL and twin:
            return f"the bytes of {shown(twin)}"
    return ""


def _zero(inspection: Inspection, name: str) -> str:
    bias = inspection.head.output_bias
    return "all zero" if bias is not None and bias.name == name and bias.state is BiasState.ZERO else ""


def _changed(sides: _Sides, old: TensorRecord, new: TensorRecord) -> str | None:
    """Return how a tensor differs; empty if it is proved equal, ``None`` if it was not compared."""
    if (old.dtype, old.shape) != (new.dtype, new.shape):
        return f"{list(old.shape)} {old.dtype} becomes {list(new.shape)} {new.dtype}"
    if old.range == new.range and old.range.file in sides.same_files:
        return ""
    if sides.relations is None:
        return None
    outcome = sides.relations.between(Source(old), Source(new))
    return "" if outcome is None else f"other values: {outcome[0]}"


def _config(sides: _Sides) -> Iterator[Effect]:
    before, after = (side.checkpoint.config_values for side in (sides.before, sides.after))
    for difference in compare_configs(before, after):
        old, new = _value(difference.a, difference.in_a), _value(difference.b, difference.in_b)
        yield Effect("config", difference.path, f"{old} becomes {new}")


def _value(value: object, present: bool) -> str:
    if not present:
        return "absent"
    return str(value).lower() if isinstance(value, bool) or value is None else shown(value, 60)
