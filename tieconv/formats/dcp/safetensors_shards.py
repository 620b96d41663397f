"""Read the shards that `HuggingFaceStorageWriter` of torch saves for each rank: safetensors files with chunks.

The metadata entry `DCP_SHARDING_INFO` of each file has the offset of each chunk. No file has the shapes: as in torch,
a shape is the largest end of a chunk. Source: torch/distributed/checkpoint/hf_storage.py of torch 2.13.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import NoReturn

from tieconv.checkpoint.files.chunks import Chunk
from tieconv.checkpoint.files.interface import Files
from tieconv.checkpoint.files.model_files import Listing
from tieconv.checkpoint.files.weight_file import TensorRecord, WeightFile
from tieconv.errors import UnreadableError
from tieconv.formats.dcp.chunk_metadata import StoredChunks
from tieconv.formats.dcp.names import SHARD
from tieconv.formats.json.strict import loads
from tieconv.formats.safetensors.header import read_weight_file
from tieconv.text import shown

_INFO, _OFFSETS = "DCP_SHARDING_INFO", "saved_offsets"
_LIMIT = 100_000_000


def is_sharded_safetensors(listing: Listing) -> bool:
    """Return whether MODEL has the files of this layout, judged by their names."""
    return not listing.named and any(SHARD.fullmatch(name) for name in listing.top)


def read_shards(listing: Listing, files: Files) -> tuple[tuple[StoredChunks, ...], tuple[str, ...]]:
    """Return the tensors, and the files that hold them. Raises `UnreadableError` with a stable code."""
    names = sorted(name for name in listing.top if SHARD.fullmatch(name))
    _check_ranks(names)
    chunks: dict[str, list[Chunk]] = {}
    dtypes: dict[str, str] = {}
    for name in names:
        file = read_weight_file(partial(_pread, files, name), listing.entries[name], name)
        for tensor, offsets in _chunks(file):
            if dtypes.setdefault(tensor.name, tensor.dtype) != tensor.dtype:
                _refuse(name, f"stores {shown(tensor.name)} with another dtype than the other shards")
            chunks.setdefault(tensor.name, []).append(Chunk(offsets, tensor.shape, tensor.range, archive=False))
    return tuple(
        StoredChunks(name, dtypes[name], _shape(name, every), tuple(every), ()) for name, every in chunks.items()
    ), tuple(names)


def _pread(files: Files, name: str, size: int, offset: int) -> bytes:
    return files.pread(name, size, offset)


def _check_ranks(names: list[str]) -> None:
    """Refuse a gap in the numbers of the ranks. A missing last rank shows only as a hole or a smaller shape."""
    ranks = sorted({int(match.group(1)) for name in names if (match := SHARD.fullmatch(name))})
    missing = next((number for number, rank in enumerate(ranks, 1) if number != rank), None)
    if missing is not None:
        raise UnreadableError(
            f"the files of rank {missing} are missing: no file starts with shard-{missing:05d}",
            "fetch the missing file: every rank writes a separate file",
            "dcp.absent-file",
        )


def _chunks(file: WeightFile) -> Iterator[tuple[TensorRecord, tuple[int, ...]]]:
    text = (file.metadata or {}).get(_INFO)
    table = loads(text.encode(), f"{file.name} ({_INFO})", limit=_LIMIT) if text is not None else {}
    for tensor in file.tensors:
        entry = table.get(tensor.name)
        offsets = entry.get(_OFFSETS) if isinstance(entry, Mapping) else None
        if text is None:
            offsets = [0] * len(tensor.shape)
        if not isinstance(offsets, list) or len(offsets) != len(tensor.shape) or not all(map(_natural, offsets)):
            _refuse(file.name, f"has no offset of {shown(tensor.name)} in {_INFO}")
        yield tensor, tuple(offsets)


def _shape(name: str, chunks: list[Chunk]) -> tuple[int, ...]:
    if len({len(chunk.shape) for chunk in chunks}) > 1:
        _refuse(chunks[0].range.file, f"stores {shown(name)} with another rank than the other shards")
    ends = ([start + side for start, side in zip(chunk.offsets, chunk.shape, strict=True)] for chunk in chunks)
    return tuple(map(max, zip(*ends, strict=True)))


def _natural(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def _refuse(file: str, why: str) -> NoReturn:
    raise UnreadableError(f"{shown(file)} {why}", "save the checkpoint again", "dcp.malformed")
