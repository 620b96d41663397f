"""The shard index, rebuilt from the headers of the shards."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from tieconv.checkpoint.plan import KeepTensor, LinkFile, OutputText, Plan, Promises
from tieconv.checkpoint.records import Checkpoint, TensorRecord
from tieconv.errors import RefusedError
from tieconv.formats.shards import index_name, outside, weight_map
from tieconv.text import count, shown

Equal = Callable[[TensorRecord, TensorRecord], bool]
"""A proof: whether two records hold the same bytes."""

_LISTED = 6


def plan_reindex(checkpoint: Checkpoint, equal: Equal, *, prune: bool = False) -> Plan:
    """The plan that writes the index that the shards of ``checkpoint`` (read by `read_shards`) call for.

    ``prune`` leaves the weight files outside the index out. Raises `RefusedError` where one tensor stands in two
    shards with different bytes.
    """
    old = weight_map(checkpoint.index)
    homes = _homes(checkpoint, old, equal)
    total = sum(record.nbytes for record in homes.values())
    name = index_name(checkpoint)
    text = _text(checkpoint, old, homes, total)
    changed = checkpoint.index is None or text != checkpoint.index.text
    strays = outside(checkpoint)
    gone = strays if prune else ()
    files = {file.name: file.size for file in checkpoint.files} | dict(checkpoint.companions)
    if not changed:
        files[name] = checkpoint.states[name].size
    return Plan(
        command="reindex",
        checkpoint=checkpoint,
        fingerprint=dict(checkpoint.states),
        operations=tuple(KeepTensor(tensor) for tensor in homes),
        weights=(),
        texts=(OutputText(name, text),) if changed else (),
        links=tuple(LinkFile(file, size) for file, size in sorted(files.items()) if file not in gone),
        removed=gone,
        promises=Promises(None, ()),
        summary=_summary(checkpoint, old, homes, total, changed),
        options={"prune": str(prune).lower()},
        notes=_notes(checkpoint, strays, prune),
    )


def _homes(checkpoint: Checkpoint, old: Mapping[str, str], equal: Equal) -> dict[str, TensorRecord]:
    """Each tensor and the record that the index is to name, in file order."""
    found: dict[str, TensorRecord] = {}
    for file in checkpoint.files:
        for record in file.tensors:
            first = found.setdefault(record.name, record)
            if first is record:
                continue
            _check_same(first, record, equal)
            if old.get(record.name) == record.range.file:
                found[record.name] = record
    return found


def _check_same(first: TensorRecord, second: TensorRecord, equal: Equal) -> None:
    if (first.dtype, first.shape) == (second.dtype, second.shape) and equal(first, second):
        return
    raise RefusedError(
        f"{shown(first.name)} stands in {shown(first.range.file)} and in {shown(second.range.file)} with different "
        "bytes, so no index is right",
        "move the shard that is not meant out of the directory",
        "reindex.repeated",
    )


def _text(checkpoint: Checkpoint, old: Mapping[str, str], homes: Mapping[str, TensorRecord], total: int) -> str:
    """The index as transformers writes it; its text as it is where it already says so."""
    index = checkpoint.index
    value: dict[str, Any] = dict(index.value) if index else {}
    metadata = value.get("metadata")
    metadata = dict(metadata) if isinstance(metadata, Mapping) else {}
    new = {name: record.range.file for name, record in homes.items()}
    if index is not None and value.get("weight_map") == new and metadata.get("total_size") == total:
        return index.text
    in_order = list(old) == sorted(old)
    places = {name: place for place, name in enumerate(old)}
    names = sorted(new) if in_order else sorted(new, key=lambda name: places.get(name, len(places)))
    value["metadata"] = metadata | {"total_size": total}
    value["weight_map"] = {name: new[name] for name in names}
    return json.dumps(value, indent=2, sort_keys=in_order) + "\n"


def _summary(
    checkpoint: Checkpoint, old: Mapping[str, str], homes: Mapping[str, TensorRecord], total: int, changed: bool
) -> str:
    if not changed:
        return "the index already is right: nothing to change"
    if not old:
        return f"index of {count(len(homes), 'tensor')} in {count(len(checkpoint.files), 'shard')} written"
    moved = sum(name in old and old[name] != record.range.file for name, record in homes.items())
    parts = [
        f"{count(number, 'entry').replace('entrys', 'entries')} {word}"
        for number, word in (
            (len(homes.keys() - old.keys()), "added"),
            (len(old.keys() - homes.keys()), "dropped"),
            (moved, "moved"),
        )
        if number
    ]
    return ", ".join(parts) if parts else f"total_size becomes {total:,}"


def _notes(checkpoint: Checkpoint, strays: tuple[str, ...], prune: bool) -> tuple[str, ...]:
    notes = [f"the index that is there cannot be read: {caution.message}" for caution in checkpoint.cautions]
    if strays:
        listed = ", ".join(shown(name, 60) for name in strays[:_LISTED])
        more = f" and {len(strays) - _LISTED} more" if len(strays) > _LISTED else ""
        what = "left out" if prune else "comes along (--prune leaves it out)"
        notes.append(f"outside the index: {listed}{more}; {what}")
    return tuple(notes)
