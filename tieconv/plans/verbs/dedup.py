"""Plan to store each shared group once, as far as the format and the architecture allow."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tieconv.architectures.effective_flag import reading_v4
from tieconv.checkpoint.family import Role
from tieconv.checkpoint.inspection import Depth, Inspection, State
from tieconv.checkpoint.tie_group import Tie
from tieconv.checkpoint.value_type import record
from tieconv.checkpoint.weight_file import ByteRange, Storage, TensorRecord
from tieconv.checkpoint.write_plan import OutputStorage, Plan
from tieconv.loaders.evidence import without_tensors
from tieconv.loaders.load import TRANSFORMERS_4, TRANSFORMERS_5, TRANSFORMERS_448, has_class_448, load, releases
from tieconv.loaders.loaded import Absence, Cause, Parameter
from tieconv.plans.build import EQUAL, build, kept_promises
from tieconv.plans.edits import Edits
from tieconv.plans.guards import guard_layout
from tieconv.text import in_words, shown

_WIDEST = 16
"""Bytes of the widest element."""


@record
class SharedGroup:
    """Stored tensors with the same bytes, type and shape.

    ``restored`` are the names that loaders restore from another name. ``needed`` are the other names, each with the
    reason why it stays. The first of them is the reference of the group.
    """

    restored: tuple[str, ...]
    needed: tuple[tuple[str, str], ...]


def plan_dedup(inspection: Inspection) -> Plan:
    """Return the plan that drops each copy that loaders restore; the config does not change.

    A safetensors file has a separate byte range for each name, so a copy that a loader needs stays. The notes of the
    plan list these copies. A torch file keeps every name and stores one copy. The plan frees the bytes of storages
    that no tensor uses. Raises `RefusedError` if the layout is ambiguous.
    """
    guard_layout(inspection)
    assert inspection.depth is Depth.FULL, "only a full inspection compares every tensor"
    edits = Edits(inspection.checkpoint)
    notes: list[str] = []
    settle = _share if inspection.checkpoint.format == "torch" else _drop
    # Free the bytes of torch storages that no tensor views.
    for file in edits.checkpoint.files:
        for storage in file.storages:
            views = [record for record in file.tensors if record.storage == storage.key]
            output = trimmed(storage, views)
            if views and output.range != storage.range:
                edits.trim(views[0], output, storage.range.size - output.range.size)
    for group in shared_groups(inspection):
        notes += settle(edits, group)
    # Drop empty tensors under tied names; note each empty tensor that stays.
    for tie in inspection.ties:
        for member in tie.stored_members:
            if member.state is State.CANONICAL or inspection.checkpoint.tensors[member.name].elements:
                continue
            why = _not_restored(inspection, tie, {member.name})
            if why:
                notes.append(f"kept: {shown(member.name)}, which is empty: {why}")
            else:
                edits.drop(member.name, "it is empty")
    promises = kept_promises(inspection, inspection.ties, edits.after())
    return build("dedup", inspection, edits, None, promises, notes=tuple(notes), spared=edits.drops)


def _drop(edits: Edits, group: SharedGroup) -> list[str]:
    """Drop the restored names of a safetensors file; return a note on the other names."""
    for name in group.restored:
        edits.drop_equal(name, group.needed[0][0], f"loaders take its values from {group.needed[0][0]}")
    others = group.needed[1:]
    if others and group.needed[0][1] == _READ:
        names = in_words((shown(name) for name, _ in others), 4)
        return [f"kept: {names}, equal to {shown(group.needed[0][0])}: loaders read each by its name"]
    return [f"kept: {shown(name)}, {reason}" for name, reason in others]


def _share(edits: Edits, group: SharedGroup) -> list[str]:
    """Make all names in one torch file views of one storage; return notes on names in other files.

    A name in another file is dropped if loaders restore it, as in safetensors.
    """
    tensors, notes = edits.checkpoint.tensors, []
    first: dict[str, TensorRecord] = {}
    reasons = dict(group.needed)
    for name in (*reasons, *group.restored):
        record = tensors[name]
        home = first.setdefault(record.range.file, record)
        if home is not record and (home.range.file, home.storage) != (record.range.file, record.storage):
            edits.share(name, home)
        elif home is record and len(first) > 1:
            if name in group.restored:
                edits.drop_equal(name, group.needed[0][0], f"loaders take its values from {group.needed[0][0]}")
            else:
                notes.append(f"kept: {shown(name)}, {reasons[name]}, and two files cannot share a storage")
    return notes


def trimmed(storage: Storage, views: Sequence[TensorRecord]) -> OutputStorage:
    """Return the storage cut to the bytes that ``views`` use; its start is aligned to the widest element."""
    start = min((record.range.start for record in views), default=storage.range.start)
    end = max((record.range.end for record in views), default=storage.range.end)
    start -= (start - storage.range.start) % _WIDEST
    span = ByteRange(storage.range.file, start, end)
    return OutputStorage(span, storage.crc if span == storage.range else None)


_READ = "which loaders read by its name"


def shared_groups(inspection: Inspection) -> tuple[SharedGroup, ...]:
    """Return the groups of byte-identical tensors, tied groups first, each split into restored and needed names."""
    ties = [group for group in (_tied(inspection, tie) for tie in inspection.ties) if group is not None]
    named = {name for group in ties for name in group.restored}
    copies = [
        SharedGroup((), tuple((name, _READ) for name in duplicate.tensors if name not in named))
        for duplicate in inspection.duplicates
        if duplicate.kind in EQUAL
    ]
    return (*ties, *copies)


def _tied(inspection: Inspection, tie: Tie) -> SharedGroup | None:
    """Return the equal members of one tied group; ``None`` if no two members are equal."""
    equal = [member for member in tie.stored_members if member.state in EQUAL and not member.relation.is_empty]
    reference = next((member for member in tie.members if member.state is State.CANONICAL), None)
    if not equal or reference is None:
        return None
    why = _not_restored(inspection, tie, {member.name for member in equal})
    if why:
        return SharedGroup((), ((reference.name, ""), *((member.name, why) for member in equal)))
    return SharedGroup(tuple(member.name for member in equal), ((reference.name, ""),))


def _not_restored(inspection: Inspection, tie: Tie, dropped: Collection[str]) -> str:
    """Return why loaders would not restore the ``dropped`` members of the group; empty if they do."""
    label = inspection.family.architecture or "the architecture"
    matrices = inspection.quantised.matrices if inspection.quantised else ()
    if any(part.name in dropped for matrix in matrices for part in matrix.parts):
        return "it is one part of a quantised matrix: tieconv retie drops all parts together"
    if not inspection.family.trusted:
        return f"tieconv does not know {shown(label)}, so a loader may need it"
    if not tie.canonical_stored:
        return f"{shown(tie.canonical)} is not stored: tieconv retie restores this name"
    lost = {release: _lost(inspection, dropped, release) for release in releases(inspection)}
    if lost[TRANSFORMERS_5]:
        return f"{label} reads it as a separate tensor while the flag is false"
    lost_4 = lost.get(TRANSFORMERS_4, []) if reading_v4(inspection) is not None else []
    empty = next((parameter for parameter in lost_4 if parameter.absence is Absence.UNSET), None)
    if empty is not None:
        return f"transformers 4 takes the tied values from {shown(empty.parameter)} alone"
    if lost_4:
        return "transformers 4 reads the flag as false: tieconv retie sets the flag at every level"
    tables = tie.role is Role.WORD_EMBEDDING and has_class_448(inspection.family)
    oldest = tables and _lost(inspection, dropped, TRANSFORMERS_448)
    return "transformers 4.48 does not restore it from another name" if oldest else ""


def _lost(inspection: Inspection, dropped: Collection[str], release: str) -> list[Parameter]:
    """Return the parameters that get no stored values in a release without the ``dropped`` tensors.

    A release that refuses the config loses nothing.
    """
    before, after = load(inspection, release), load(without_tensors(inspection, dropped), release)
    if before.refused(Cause.CONFIG) is not None:
        return []
    names = (name for name, stored in before.names.items() if before.source(stored) is not None)
    parameters = (after.parameters[after.names[name]] for name in names)
    return [parameter for parameter in parameters if parameter.stored is None]
