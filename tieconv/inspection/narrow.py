"""Reduce a sharded model to the shards that matter for its ties, by its config and its index."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

from tieconv.architectures import find, locate
from tieconv.architectures.lookup import with_names
from tieconv.architectures.stored_names import known_names
from tieconv.checkpoint.family import Family, Knowledge
from tieconv.checkpoint.inspection import Depth, Shadow
from tieconv.checkpoint.model_files import ByteReader, Checkpoint, Files, FileState, Listing
from tieconv.checkpoint.weight_file import TensorRecord
from tieconv.formats.directory import CONFIG, read_bytes, read_config
from tieconv.formats.index import LIMIT, read_index
from tieconv.formats.safetensors import SAFETENSORS
from tieconv.formats.torch.model import TORCH
from tieconv.inspection.equality import equal
from tieconv.inspection.ties import head_bias_name


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
) -> tuple[Shadow, ...]:
    """Return one `Shadow` for each name that an unused file repeats.

    Bytes are compared for ``candidates``, or for every name at full depth. Raises what the reader raises.
    """
    return tuple(_shadows(checkpoint, reader, depth, candidates))


def _shadows(checkpoint: Checkpoint, reader: ByteReader, depth: Depth, candidates: Collection[str]) -> Iterator[Shadow]:
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
    dense = used.stride is None and shadow.stride is None
    return not equal(reader, used.range, shadow.range) if compared and dense else None
