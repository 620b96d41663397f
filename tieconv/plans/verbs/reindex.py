"""Plan a shard index that matches the headers of the shards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import field, replace

from tieconv.architectures.stored_names import unwrapping, wrappers_of
from tieconv.checkpoint import value_type
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.model_files import Caution, Checkpoint, weight_map
from tieconv.checkpoint.weight_file import TensorRecord
from tieconv.checkpoint.write_plan import Equal, KeepTensor, LinkFile, OutputText, Plan, Promises
from tieconv.errors import RefusedError, UnreadableError
from tieconv.formats import strict_json as spelled_json
from tieconv.formats.directory import DIGITS, LIMIT
from tieconv.formats.limits import INDEX_SUFFIX
from tieconv.formats.shards import INDEX_ODD, INDEX_UNREADABLE, index_name, outside
from tieconv.formats.strict_json import Number, loads
from tieconv.plans import build as named_format
from tieconv.plans.build import build
from tieconv.plans.edits import Edits
from tieconv.plans.guards import again, guard_layout, refuse
from tieconv.plans.meaning import described, judged
from tieconv.text import Hint, call, count, listed, shown

IsEqual = Callable[[TensorRecord, TensorRecord], bool]
"""Return whether two records hold the same bytes."""

INDEX_EXTRA = "index.extra-tensor"
_LISTED = 6


def plan_reindex(
    checkpoint: Checkpoint,
    equal: IsEqual,
    evidence: Inspection | None,
    *,
    prune: bool = False,
    add_format: bool = False,
) -> Plan:
    """Return the plan that writes an index for the shards of ``checkpoint``, which `read_shards` read.

    ``prune`` leaves out the weight files outside the index. ``add_format`` writes the "format" entry into shards
    where it is missing or not accepted by loaders. ``evidence`` is the inspection of the same shards with their
    config, if there is one. Raises `RefusedError` if two shards store one tensor with different bytes.
    """
    old = weight_map(checkpoint.index)
    homes = _homes(checkpoint, old, equal)
    once = {(record.range, record.stride): record.nbytes for record in homes.values()}
    totals = sum(once.values()), sum(record.nbytes for record in homes.values())
    if add_format:
        named_format.guard_named(checkpoint, call("inspect", checkpoint.source))
    weights = named_format.with_format(checkpoint) if add_format else ()
    name = index_name(checkpoint)
    carried = _carried(checkpoint)
    text = _text(checkpoint, carried, homes, totals)
    changed = checkpoint.index is None or text != checkpoint.index.text
    strays = outside(checkpoint)
    left_out = strays if prune else ()
    files = {file.name: file.size for file in checkpoint.files} | dict(checkpoint.companions)
    if not changed:
        files[name] = checkpoint.states[name].size
    rewritten = {output.name for output in weights}
    unwritten = ((file, size) for file, size in sorted(files.items()) if file not in rewritten.union(left_out))
    summary, shards = _summary(checkpoint, old, homes, totals, changed), named_format.summary(weights)
    if shards:
        summary = f"{summary}; {shards}" if changed else shards
    stored = (record for file in checkpoint.files for record in file.tensors)
    plan = Plan(
        command="reindex",
        checkpoint=checkpoint,
        fingerprint=dict(checkpoint.states),
        operations=(*named_format.named(weights), *(KeepTensor(tensor) for tensor in homes)),
        weights=weights,
        texts=(OutputText(name, text),) if changed else (),
        links=tuple(LinkFile(file, size) for file, size in unwritten),
        removed=left_out,
        promises=Promises(None, ()),
        # A repeated tensor that the index omits equals the one in the index.
        proofs=tuple(Equal(record, homes[record.name]) for record in stored if record is not homes[record.name]),
        summary=summary,
        options={"prune": str(prune).lower(), "add-format": str(add_format).lower()},
        notes=(*_index_notes(checkpoint, carried), *_entry_notes(strays, prune, old, homes)),
    )
    if evidence is None or not old or [file.name + INDEX_SUFFIX for file in checkpoint.files] == [name]:
        return plan  # no loader reads shards without an index, or the names in the index of a single file
    # The model as loaders read it through the old index.
    unnamed = tuple(name for name in evidence.checkpoint.tensors if name not in old)
    cautions = (Caution(INDEX_EXTRA, f"{count(len(unnamed), 'tensor')} missing from the index", unnamed),)
    before = replace(evidence, checkpoint=replace(evidence.checkpoint, cautions=cautions if unnamed else ()))
    return judged(plan, before, described(before, plan), plan.notes)


def _homes(checkpoint: Checkpoint, old: Mapping[str, str], equal: IsEqual) -> dict[str, TensorRecord]:
    """Map each tensor to the record for the index, in file order."""
    homes: dict[str, TensorRecord] = {}
    for file in checkpoint.files:
        for record in file.tensors:
            first = homes.setdefault(record.name, record)
            if first is record:
                continue
            _check_same(first, record, equal)
            if old.get(record.name) == record.range.file:
                homes[record.name] = record
    return homes


def _check_same(first: TensorRecord, second: TensorRecord, equal: IsEqual) -> None:
    if (first.dtype, first.shape) == (second.dtype, second.shape) and equal(first, second):
        return
    problem = f"{shown(first.range.file)} and {shown(second.range.file)} store {shown(first.name)} with different bytes"
    hint = "move the wrong shard out of the directory"
    raise RefusedError(f"{problem}, so no index can be correct", hint, "reindex.repeated")


@value_type.record
class _Carried:
    """The entries of the old index besides its map and its total, with each number as the file spells it.

    ``lost`` lists the entries that a strict JSON reader would refuse, each with the reason.
    """

    value: dict[str, object] = field(default_factory=dict)
    metadata: dict[str, object] = field(default_factory=dict)
    lost: tuple[str, ...] = ()


def _carried(checkpoint: Checkpoint) -> _Carried:
    index = checkpoint.index
    if index is None:
        return _Carried()
    value = spelled_json.read(index.text.encode(), index.name, limit=LIMIT)
    lost: list[str] = []
    metadata = value.get("metadata", {})
    if not isinstance(metadata, Mapping):
        lost.append("metadata, which is not an object")
        metadata = {}
    rest = {key: entry for key, entry in value.items() if key not in ("weight_map", "metadata")}
    entries = {key: entry for key, entry in rest.items() if _is_kept(key, entry, lost)}
    said_metadata = {
        key: entry for key, entry in metadata.items() if key == "total_size" or _is_kept(key, entry, lost, "metadata.")
    }
    order = [key for key in value if key in entries or key in ("weight_map", "metadata")]
    return _Carried({key: entries.get(key) for key in order}, said_metadata, tuple(lost))


def _is_kept(key: str, entry: object, lost: list[str], parent: str = "") -> bool:
    """Return whether a strict JSON reader accepts the entry; if not, add it to ``lost`` with the reason."""
    try:
        loads(spelled_json.write({key: entry}).encode(), "", limit=LIMIT, digits=DIGITS)
    except UnreadableError as error:
        lost.append(f"{parent}{shown(key, 60)} ({error.message.partition(': ')[2]})")
        return False
    return True


def _text(checkpoint: Checkpoint, carried: _Carried, homes: Mapping[str, TensorRecord], totals: tuple[int, int]) -> str:
    """Return the index as transformers writes it, or the old text if the old index is already correct."""
    index = checkpoint.index
    old = weight_map(index)
    new = {name: record.range.file for name, record in homes.items()}
    declared = carried.metadata.get("total_size")
    right = declared in [Number(str(total)) for total in totals]
    strict = not any(caution.code == INDEX_ODD for caution in checkpoint.cautions)
    if index is not None and strict and right and index.value.get("weight_map") == new:
        return index.text
    in_order = list(old) == sorted(old)
    positions = {name: position for position, name in enumerate(old)}
    names = sorted(new) if in_order else sorted(new, key=lambda name: positions.get(name, len(positions)))
    value = dict(carried.value)
    value["metadata"] = carried.metadata | {"total_size": declared if right else Number(str(totals[0]))}
    value["weight_map"] = {name: new[name] for name in names}
    return spelled_json.write(value, sort_keys=in_order) + "\n"


def _summary(
    checkpoint: Checkpoint,
    old: Mapping[str, str],
    homes: Mapping[str, TensorRecord],
    totals: tuple[int, int],
    changed: bool,
) -> str:
    if not changed:
        return "the index is already correct: nothing to change"
    if not old:
        return f"a new index of {count(len(homes), 'tensor')} in {count(len(checkpoint.files), 'shard')}"
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
    if parts:
        return ", ".join(parts)
    lenient = any(caution.code == INDEX_ODD for caution in checkpoint.cautions)
    return "the same entries as strict JSON" if lenient else f"total_size becomes {totals[0]:,}"


def _index_notes(checkpoint: Checkpoint, carried: _Carried) -> Iterator[str]:
    """Yield notes on the other entries of an old index that is not strict JSON."""
    for caution in checkpoint.cautions:
        if caution.code == INDEX_UNREADABLE:
            yield f"tieconv cannot read the old index, so its metadata is lost: {caution.message}"
        elif caution.code == INDEX_ODD:
            extent = "some entries besides the map" if carried.lost else "all entries besides the map"
            yield f"the old index is not strict JSON, but reindex keeps {extent}: {caution.message}"
    if carried.lost:
        yield f"reindex drops from the old index: {', '.join(carried.lost)}"


def _entry_notes(
    strays: tuple[str, ...], prune: bool, old: Mapping[str, str], homes: Mapping[str, TensorRecord]
) -> Iterator[str]:
    if strays:
        pronoun = "it" if len(strays) == 1 else "them"
        fate = "left out" if prune else f"kept (--prune leaves {pronoun} out)"
        yield f"outside the index: {listed(strays, _LISTED)}; {fate}"
    if unstored := [name for name in old if name not in homes]:
        yield f"the new index leaves out entries that no shard stores: {listed(unstored, _LISTED)}"


def plan_strip_prefix(inspection: Inspection) -> Plan:
    """Return the plan that renames the tensors and changes nothing else.

    Raises `RefusedError` if the names have no prefix that tieconv can remove.
    """
    guard_layout(inspection)
    checkpoint = inspection.checkpoint
    changed = unwrapping(checkpoint.tensors)
    if not changed:
        problem = f"{shown(checkpoint.source)}: the tensor names have no removable prefix of a training wrapper"
        refuse(problem, Hint("look at the names: ", again(inspection, "inspect")), "reindex.no-prefix")
    edits = Edits(checkpoint)
    for name, bare in changed.items():
        edits.rename(name, bare)
    why = f"{' and '.join(wrappers_of(changed))} left the prefix in {count(len(changed), 'name')}"
    promises = Promises(inspection.config.effective, ())
    return build("reindex", inspection, edits, None, promises, options={"strip-prefix": "true"}, notes=(why,))
