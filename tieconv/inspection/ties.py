"""Compare the tied groups of the architecture with the stored tensors."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

from tieconv.architectures.lookup import find, with_names
from tieconv.architectures.stored_names import below, known_names, locate, model_prefixes, spelled, without_wrappers
from tieconv.checkpoint.family import Family, Knowledge, TieGroup, Tying
from tieconv.checkpoint.inspection import Depth, Shadow, State
from tieconv.checkpoint.model_files import ByteReader, Checkpoint, Files, FileState, Listing
from tieconv.checkpoint.relation import Absent, Canonical
from tieconv.checkpoint.relation.proved import Relation, Unread
from tieconv.checkpoint.tie_group import BiasState, Head, Member, OutputBias, OutputHead, TensorView, Tie
from tieconv.checkpoint.weight_file import ChunkTable, TensorRecord
from tieconv.errors import RefusedError
from tieconv.formats.directory import CONFIG, LIMIT, read_bytes, read_config, read_index
from tieconv.formats.safetensors import SAFETENSORS
from tieconv.formats.torch import TORCH
from tieconv.inspection.view_reader import is_sampled
from tieconv.text import OUT, Hint, call, shown

EQUAL = frozenset({State.ALIASED, State.IDENTICAL})
"""States of a member that a tied group may store."""


def survey(
    family: Family, tensors: Mapping[str, TensorRecord], reader: ByteReader, depth: Depth, tied: bool
) -> tuple[Tie, ...]:
    """Return one `Tie` for each group of ``family`` with at least one stored name, or with a declared head.

    ``tied`` is what the config means for the groups that the flag decides.
    """
    ties = (_survey_one(family, group, tensors, reader, depth, tied) for group in family.groups)
    return tuple(tie for tie in ties if tie is not None)


def _survey_one(
    family: Family, group: TieGroup, tensors: Mapping[str, TensorRecord], reader: ByteReader, depth: Depth, tied: bool
) -> Tie | None:
    located = {name: locate(family, name, tensors) for name in (group.canonical, *group.members)}
    stored = [actual for actual in located.values() if actual is not None]
    if not stored:
        return None
    reference = tensors[stored[0]]
    members = tuple(
        _member(family, name, actual, reference, tensors, reader, depth) for name, actual in located.items()
    )
    declared = tied if group.gated else True
    known = located[group.canonical]
    canonical, agrees = known or spelled(family, group.canonical, tensors), consistent(members, declared)
    wasted = sum(tensors[member.name].nbytes for member in members if member.relation.repeats_bytes)
    return Tie(group.role, canonical, known is not None, declared, agrees, group.gated, wasted, members)


def _member(
    family: Family,
    name: str,
    actual: str | None,
    reference: TensorRecord,
    tensors: Mapping[str, TensorRecord],
    reader: ByteReader,
    depth: Depth,
) -> Member:
    loads_as = dict(family.renames).get(name)
    if actual is None:
        return Member(spelled(family, name, tensors), False, Absent(), loads_as)
    if loads_as is None and actual != name:
        loads_as = name
    if loads_as == actual:
        loads_as = None
    relation = _relation(reference, tensors[actual], reader, depth)
    return Member(actual, True, relation, loads_as)


def _relation(reference: TensorRecord, tensor: TensorRecord, reader: ByteReader, depth: Depth) -> Relation:
    if tensor.name == reference.name:
        return Canonical()
    from tieconv.inspection.storage import sharing  # a tied model compares nothing

    known = sharing(reference, tensor)
    if known is not None:
        return known
    if depth is Depth.HEADER:
        return Unread()
    if depth is Depth.CANDIDATES and is_sampled(reader):
        from tieconv.inspection.equality import relate_sampled

        return relate_sampled(reader, reference, tensor)
    from tieconv.inspection.equality import relate  # a tied model compares nothing

    return relate(reader, reference, tensor)


def consistent(members: tuple[Member, ...], declared: bool) -> bool | None:
    """Return the entry of the state × declared table in the docs; ``None`` if a needed comparison was not made."""
    states = {member.state for member in members} - {State.CANONICAL}
    if not declared:
        return State.ABSENT not in states
    if states - EQUAL - {State.ABSENT, State.UNREAD}:
        return False
    return None if State.UNREAD in states else True


# Find the input embedding, the output embedding and its bias, by their names in the file.
def view_head(
    family: Family, tensors: Mapping[str, TensorRecord], ties: tuple[Tie, ...], reader: ByteReader, depth: Depth
) -> Head:
    """Return the input embedding, the output embedding and the head bias."""
    embedding, bias = _embedding(family, tensors, ties), _bias(family, tensors, reader, depth)
    return Head(embedding, _output(family, tensors, ties), bias, () if embedding else _pieces(family, tensors))


def _pieces(family: Family, tensors: Mapping[str, TensorRecord]) -> tuple[TensorView, ...]:
    """Return the stored tensors that a loader joins to the input embedding; empty if one of them is missing."""
    records = [tensors[name] for name in family.pieces if name in tensors]
    if len(records) < len(family.pieces):
        return ()
    return tuple(TensorView(record.name, record.shape, record.dtype) for record in records)


def _embedding(family: Family, tensors: Mapping[str, TensorRecord], ties: tuple[Tie, ...]) -> TensorView | None:
    """Return the stored input embedding, under its own name or that of the table shared with the tied head.

    For Marian the input embedding is the encoder's, and a tied model stores only `model.shared.weight`.
    """
    name = family.input_embedding and locate(family, family.input_embedding, tensors)
    if not name:
        shared = (tie for tie in ties if any(member.name == family.input_embedding for member in tie.members))
        name = next((tie.canonical for tie in shared if tie.declared and tie.canonical in tensors), None)
    if not name:
        return None
    record = tensors[name]
    return TensorView(name, record.shape, record.dtype)


def _output(family: Family, tensors: Mapping[str, TensorRecord], ties: tuple[Tie, ...]) -> OutputHead | None:
    """Return the output embedding; ``None`` for a class without one by design."""
    if family.output_head is None or family.tying is Tying.HEADLESS:
        return None
    name = locate(family, family.output_head, tensors)
    if name:
        record = tensors[name]
        return OutputHead(name, True, None, record.shape, record.dtype)
    return OutputHead(family.output_head, False, _tied_to(family.output_head, tensors, ties))


def _tied_to(head: str, tensors: Mapping[str, TensorRecord], ties: tuple[Tie, ...]) -> str | None:
    """Return the stored tensor that a tied, absent head takes its values from."""
    for tie in ties:
        if tie.declared and head in (member.name for member in tie.members):
            return next((member.name for member in tie.members if member.name in tensors), None)
    return None


def head_bias_name(head: str) -> str:
    """Return the name of a bias beside the head's weight (`lm_head.weight` → `lm_head.bias`)."""
    return f"{head.removesuffix('.weight')}.bias"


def _bias(family: Family, tensors: Mapping[str, TensorRecord], reader: ByteReader, depth: Depth) -> OutputBias | None:
    """Return the bias that transformers 5 reads: of two stored names the head's own.

    A bias stored beside a head whose class has none counts too.
    """
    if family.output_head is None:
        return None
    names = family.output_biases or (head_bias_name(family.output_head),)
    for name in reversed(names):
        actual = locate(family, name, tensors)
        if actual:
            return read_bias(tensors[actual], reader, depth)
    return OutputBias(names[0], BiasState.ABSENT)


def read_bias(record: TensorRecord, reader: ByteReader, depth: Depth) -> OutputBias:
    """Return a stored bias. It stays unread at the depth of headers, or if it is large and far."""
    # A bias of up to a million elements of four bytes is fetched without a request.
    if depth is Depth.HEADER or (depth is Depth.CANDIDATES and is_sampled(reader) and record.nbytes > 4 << 20):
        return OutputBias(record.name, BiasState.UNREAD)
    from tieconv.inspection.equality import bias_summary  # most models have no bias

    return OutputBias(record.name, *bias_summary(reader, record))


# Give the tensors of a training checkpoint the names of the model, without the prefixes of the training program.
def with_bare_names(checkpoint: Checkpoint, embed: str | None = None) -> Checkpoint:
    """Return the checkpoint with the names of the model, and without the tensors that are not below the prefix.

    ``embed`` is the stored name of the embedding, if the user gave it. Raises `RefusedError` if no prefix or several
    fit, or if a tensor beside the model is not a counter.
    """
    tensors, table = checkpoint.tensors, checkpoint.table
    prefix = _prefix(checkpoint, embed)
    names = below(prefix, tensors)
    outside = {name: record for name, record in tensors.items() if name not in names.values()}
    # Refuse to leave out a tensor that may belong to the model. A counter has one element.
    left = next((record for record in outside.values() if record.elements > 1), None)
    # Whether another state dict of the checkpoint, such as averaged weights, holds the tensor.
    if left is not None and left.name not in checkpoint.table.starts:
        problem = f"{shown(checkpoint.source)}: {shown(left.name)} is not below {shown(prefix)}, where the model is"
        hint = "save the model's state dict alone, then convert that checkpoint"
        raise RefusedError(problem, hint, "dcp.outside-model")
    bare = {stored: name for name, stored in names.items()}
    files = tuple(
        replace(file, tensors=tuple(_renamed(record, bare) for record in file.tensors if record.name in bare))
        for file in checkpoint.files
    )
    chunks = {name: table.chunks[stored] for name, stored in names.items()}
    overlapping = frozenset(name for name, stored in names.items() if stored in table.overlapping)
    renamed = ChunkTable(chunks, overlapping, table.training, {}, names, outside)
    return replace(checkpoint, files=files, table=renamed)


def bare_name(checkpoint: Checkpoint, name: str | None) -> str | None:
    """Return the name that a stored tensor has in ``checkpoint``, whose names are bare."""
    bare = {stored: name for name, stored in checkpoint.table.stored_names.items()}
    return None if name is None else bare.get(name, name)


def _prefix(checkpoint: Checkpoint, embed: str | None) -> str:
    shapes = {name: record.shape for name, record in checkpoint.tensors.items()}
    family = find(checkpoint.config_values, shapes)
    starts = checkpoint.table.starts
    prefixes = model_prefixes(family, shapes, starts)
    if embed is not None:
        chosen = [prefix for prefix in prefixes if without_wrappers(embed).startswith(prefix)]
        prefixes = tuple(chosen[-1:]) or (starts.get(embed, ""),)
    if len(prefixes) == 1:
        return prefixes[0]
    if not prefixes and not family.trusted:
        return ""
    raise _unknown_names(checkpoint, family) if not prefixes else _several(checkpoint, family, prefixes)


def _unknown_names(checkpoint: Checkpoint, family: Family) -> RefusedError:
    problem = f"{shown(checkpoint.source)} has no tensor {shown(family.input_embedding or '')}"
    hint = "export it with the tool that trained it, which knows its own names"
    return RefusedError(f"{problem}, so its names are not those of {shown(family.architecture)}", hint, "dcp.names")


def _several(checkpoint: Checkpoint, family: Family, prefixes: tuple[str, ...]) -> RefusedError:
    first, second = sorted(prefixes, key=lambda prefix: prefix.startswith(("ema", "model_ema")))[:2]
    embedding = family.input_embedding or "NAME"
    problem = f"{shown(checkpoint.source)} holds several models, under {_named(first)} and {_named(second)}"
    hint = Hint("choose one: ", call("convert", checkpoint.source, to="safetensors", out=OUT, embed=first + embedding))
    return RefusedError(problem, hint, "dcp.several")


def _named(prefix: str) -> str:
    return shown(prefix) if prefix else "no prefix"


def _renamed(record: TensorRecord, bare: Mapping[str, str]) -> TensorRecord:
    return TensorRecord(bare[record.name], record.dtype, record.shape, record.range)


# Reduce a sharded model to the shards that matter for its ties, by its config and its index.
class NarrowedFiles:
    """The files of a model whose index lists only some shards; all other reads pass through."""

    def __init__(self, inner: Any, index: str, data: bytes) -> None:
        self._inner, self._index, self._data = inner, index, data

    def pread(self, name: str, size: int, offset: int) -> bytes:
        if name == self._index:
            return self._data[offset : offset + size]
        data: bytes = self._inner.pread(name, size, offset)
        return data

    def state(self, name: str) -> FileState:
        state: FileState = self._inner.state(name)
        return replace(state, size=len(self._data)) if name == self._index else state

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


Narrowed = tuple[Listing, NarrowedFiles, tuple[str, ...]]


def narrow(listing: Listing, files: Files, embed: str | None, head: str | None) -> Narrowed | None:
    """Return the listing and files without the shards that hold no tied name, and the names of those shards.

    Returns ``None`` if all shards are needed: without an index, or if only the shapes show what ties. Raises
    `UnreadableError` for a malformed config or index.
    """
    model = SAFETENSORS if SAFETENSORS.claims(listing) else TORCH
    naming = model.naming
    if listing.named or naming.index not in listing.top or naming.single in listing.top or CONFIG not in listing.top:
        return None
    _, homes = read_index(read_bytes(files, naming.index, LIMIT), naming.index)
    family = find(read_config(files)[0].value, dict.fromkeys(homes, ()))
    if embed or head:
        family = with_names(family, embed, head)
    elif family.knowledge is not Knowledge.TABLE:
        return None
    needed = {homes[name] for name in _concerned(family, homes)}
    unread = tuple(sorted(set(homes.values()) - needed))
    if not needed or not unread:
        return None
    entries = {name: size for name, size in listing.entries.items() if name in needed or not naming.is_weights(name)}
    index = {"weight_map": {name: shard for name, shard in homes.items() if shard in needed}}
    narrowed = NarrowedFiles(files, naming.index, json.dumps(index).encode())
    return replace(listing, entries=entries), narrowed, unread


def _concerned(family: Family, names: Mapping[str, str]) -> Iterator[str]:
    """Yield the stored names that matter for a tie, and the tensors beside them in their modules, such as scales."""
    bias = (head_bias_name(family.output_head),) if family.output_head else ()
    for played in (*known_names(family), *bias):
        actual = locate(family, played, names)
        if actual is not None:
            module = actual.rpartition(".")[0] + "."
            yield from (name for name in names if name == actual or name.startswith(module))


def find_shadows(
    checkpoint: Checkpoint, reader: ByteReader, depth: Depth, candidates: Collection[str]
) -> Iterator[Shadow]:
    """Yield one `Shadow` for each name that an unused file repeats.

    Bytes are compared for ``candidates``, or for every name at full depth. Raises what the reader raises.
    """
    tensors = checkpoint.tensors
    for file in (*checkpoint.orphans, *checkpoint.twins):
        for record in file.tensors:
            used = tensors.get(record.name)
            if used is None:
                continue
            compared = depth is Depth.FULL or (depth is Depth.CANDIDATES and record.name in candidates)
            yield Shadow(record.name, file.name, _differs(reader, used, record, compared))


def _differs(reader: ByteReader, used: TensorRecord, shadow: TensorRecord, compared: bool) -> bool | None:
    if (used.dtype, used.shape) != (shadow.dtype, shadow.shape):
        return True
    from tieconv.inspection.equality import equal  # most models are not reduced to some shards

    dense = used.stride is None and shadow.stride is None
    return not equal(reader, used.range, shadow.range) if compared and dense else None
