"""Read a torch distributed checkpoint (DCP): a `.metadata` pickle and `__<rank>_<n>.distcp` files.

The metadata lists all tensors, so no tensor byte is read. A tensor may be split into chunks over several files, and
each chunk is a separate torch archive. `tieconv.inspection.chunk_reader` reads their values.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from math import prod

from tieconv.checkpoint.model_files import Caution, Checkpoint, Document, Files, Layout, Listing
from tieconv.checkpoint.weight_file import BITS, ByteRange, Chunk, ChunkTable, TensorRecord, WeightFile
from tieconv.errors import UnreadableError
from tieconv.formats.dcp_metadata import StoredChunks, read_metadata
from tieconv.formats.directory import CONFIG, checkpoint_of, read_config
from tieconv.formats.limits import DCP_METADATA, DCP_SHARD, DCP_SUFFIX, TENSORS
from tieconv.formats.safetensors import read_weight_file
from tieconv.formats.strict_json import loads
from tieconv.formats.torch.pickle_stack import natural
from tieconv.text import OUT, Hint, call, shown


def read_directory(listing: Listing, files: Files) -> Checkpoint:
    """Read the checkpoint that ``listing`` names. Raises `UnreadableError` with a stable code."""
    # Whether MODEL has the files of this layout, judged by their names.
    if not listing.named and any(DCP_SHARD.fullmatch(name) for name in listing.top):
        tensors, names = read_shards(listing, files)
        return _checkpoint(listing, files, tensors, names, "", True)
    if DCP_METADATA not in listing.entries:
        raise UnreadableError(
            f"{shown(listing.source)} holds {DCP_SUFFIX} files but no {DCP_METADATA}",
            "fetch the missing file, or save the checkpoint again; the save may not have finished",
            "dcp.no-metadata",
        )
    chunks, names, transformed = read_metadata(listing, files)
    return _checkpoint(listing, files, chunks, names, DCP_METADATA, not transformed)


def _checkpoint(
    listing: Listing,
    files: Files,
    tensors: Iterable[StoredChunks],
    names: tuple[str, ...],
    metadata: str,
    readable: bool,
) -> Checkpoint:
    table, records = _table(tensors, metadata or listing.source)
    weights = tuple(
        WeightFile(name, listing.entries[name], 0, () if number else records, None) for number, name in enumerate(names)
    )
    config, cautions = _find_config(listing, files)
    used = {*names, *([metadata] if metadata else []), *([config.name] if config else [])}
    checkpoint = checkpoint_of(listing, files, Layout.SHARDED, "dcp", weights, sorted(used))
    hint = Hint("convert it first: ", call("convert", listing.source, to="safetensors", out=OUT))
    closed = hasattr(files, "client") or not readable
    return replace(checkpoint, config=config, cautions=cautions, table=table, read_only=hint, headers_only=closed)


FOLDERS = ("huggingface", "hf_assets", ".hf_metadata")
"""Directories with the config and the tokenizer, as verl, torchtitan and NeMo Automodel write them."""


def _find_config(listing: Listing, files: Files) -> tuple[Document | None, tuple[Caution, ...]]:
    """Return the first config inside the checkpoint, and its cautions. Nothing outside the checkpoint is opened."""
    if CONFIG in listing.top:
        return read_config(files)
    inside = (f"{folder}/{CONFIG}" for folder in FOLDERS)
    name = next((name for name in inside if name in listing.entries), None)
    return (None, ()) if name is None else read_config(files, name)


def _table(tensors: Iterable[StoredChunks], source: str) -> tuple[ChunkTable, tuple[TensorRecord, ...]]:
    """Return the chunks of all tensors, and the records of the model's tensors. Checks that chunks are complete."""
    chunks, overlapping, starts = {}, set(), {}
    model, training = [], {}
    position = 0
    for tensor in tensors:
        # The record of one tensor: its dense bytes, behind those of the tensors before it.
        nbytes = prod(tensor.shape) * BITS.get(tensor.dtype, 8) // 8
        if nbytes >= 1 << 63:
            raise UnreadableError(
                f"{source}: {shown(tensor.name)} has a size that overflows 64 bits",
                "save the checkpoint again",
                "dcp.malformed",
            )
        record = TensorRecord(tensor.name, tensor.dtype, tensor.shape, ByteRange(TENSORS, position, position + nbytes))
        position = record.range.end
        if overlaps(tensor.name, tensor.shape, tensor.chunks, source):
            overlapping.add(tensor.name)
        chunks[tensor.name] = tensor.chunks
        if is_training_state(tensor.name, tensor.keys):
            training[tensor.name] = record
            continue
        model.append(record)
        start = ".".join(tensor.keys[:-1])
        if start and tensor.name == ".".join(tensor.keys):
            starts[tensor.name] = f"{start}."
    return ChunkTable(chunks, frozenset(overlapping), training, starts), tuple(model)


CELLS_EACH = 64
"""Most cells of the common grid for each chunk. A mesh has one cell a chunk."""
CELLS = 1024
"""Cells that any tensor may have."""


def overlaps(name: str, shape: Sequence[int], chunks: Sequence[Chunk], source: str) -> bool:
    """Return whether two chunks share an element. Raises `UnreadableError` unless the chunks cover the tensor.

    The borders of all chunks cut the tensor into cells. Each chunk then is a box of whole cells.
    """
    for chunk in chunks:
        ends = [start + side for start, side in zip(chunk.offsets, chunk.shape, strict=True)]
        if any(end > side for end, side in zip(ends, shape, strict=True)):
            where = f"a chunk of {shown(name)} that reaches to {_index(ends)}"
            raise _malformed(source, f"has {where}, outside the shape {_index(shape)}", "dcp.outside")
    if not prod(shape):
        return False
    chunks = [chunk for chunk in chunks if prod(chunk.shape)]
    borders = [sorted({0, side, *_borders(chunks, axis)}) for axis, side in enumerate(shape)]
    sides = [len(border) - 1 for border in borders]
    if prod(sides) > CELLS + CELLS_EACH * len(chunks):
        raise _malformed(source, f"cuts {shown(name)} into chunks that form no mesh", "dcp.mesh")
    covered = bytearray(prod(sides))
    shared = False
    for chunk in chunks:
        for cell in _cells(chunk, borders, sides):
            shared |= bool(covered[cell])
            covered[cell] = 1
    if not all(covered):
        number, corner = covered.index(0), []
        for border in reversed(borders):
            number, position = divmod(number, len(border) - 1)
            corner.append(border[position])
        raise _malformed(source, f"has no chunk of {shown(name)} for the element {_index(corner[::-1])}", "dcp.hole")
    return shared


def _borders(chunks: Sequence[Chunk], axis: int) -> Iterator[int]:
    for chunk in chunks:
        yield chunk.offsets[axis]
        yield chunk.offsets[axis] + chunk.shape[axis]


def _cells(chunk: Chunk, borders: Sequence[Sequence[int]], sides: Sequence[int]) -> Iterator[int]:
    """Yield the number of each cell of the chunk, in row-major order."""
    spans = [
        range(bisect_left(border, start), bisect_left(border, start + side))
        for border, start, side in zip(borders, chunk.offsets, chunk.shape, strict=True)
    ]
    for index in product(*spans):
        number = 0
        for position, side in zip(index, sides, strict=True):
            number = number * side + position
        yield number


def _index(values: Sequence[int]) -> str:
    return f"[{', '.join(f'{value:,}' for value in values)}]"


def _malformed(source: str, why: str, code: str = "dcp.malformed") -> UnreadableError:
    return UnreadableError(f"{shown(source)} {why}", "save the checkpoint again", code)


_DICTIONARY = re.compile(r"optim(\w*)|\w*(optimizers?|schedulers?|dataloader|rng_states?|train_state|grad_scaler)")
"""Keys of dictionaries around the model's state dict that hold no weights."""
_STATE = frozenset(
    {
        *("exp_avg", "exp_avg_sq", "exp_inf", "max_exp_avg_sq", "momentum_buffer", "square_avg", "grad_avg"),
        *("acc_delta", "sum", "prev", "step_size", "master_param", "master_weight", "fp32_param"),
    }
)
"""Names of the state that optimizers of torch, Apex and Megatron keep for each parameter."""
_PARAMETER = re.compile(r"\.(weight|bias)\.")
_OUTER = 3
"""The most dictionaries around a state dict: ``app``, ``optim`` and ``state``."""


def is_training_state(name: str, keys: Sequence[str]) -> bool:
    """Return whether a tensor belongs to the training state. ``keys`` is its path of dictionary keys, if known.

    Parts of a module's name never decide alone: a module may be called ``optim`` at a deeper level.
    """
    parts = list(keys[:-1]) if len(keys) > 1 else name.split(".")[:_OUTER]
    if any(_DICTIONARY.fullmatch(part) for part in parts[:_OUTER]) and len(name.split(".")) > 1:
        return True
    ending = name.rpartition(".")[2]
    return ending in _STATE and (ending not in {"sum", "prev"} or bool(_PARAMETER.search(name)))


# Read the shards that `HuggingFaceStorageWriter` of torch saves for each rank: safetensors files with chunks.
#
# The metadata entry `DCP_SHARDING_INFO` of each file has the offset of each chunk. No file has the shapes: as in
# torch, a shape is the largest end of a chunk. Source: torch/distributed/checkpoint/hf_storage.py of torch 2.13.

_INFO, _OFFSETS = "DCP_SHARDING_INFO", "saved_offsets"
_LIMIT = 100_000_000


def read_shards(listing: Listing, files: Files) -> tuple[tuple[StoredChunks, ...], tuple[str, ...]]:
    """Return the tensors, and the files that hold them. Raises `UnreadableError` with a stable code."""
    names = sorted(name for name in listing.top if DCP_SHARD.fullmatch(name))
    # Refuse a gap in the numbers of the ranks. A missing last rank shows only as a hole or a smaller shape.
    ranks = sorted({int(match.group(1)) for name in names if (match := DCP_SHARD.fullmatch(name))})
    missing = next((number for number, rank in enumerate(ranks, 1) if number != rank), None)
    if missing is not None:
        raise UnreadableError(
            f"the files of rank {missing} are missing: no file starts with shard-{missing:05d}",
            "fetch the missing file: every rank writes a separate file",
            "dcp.absent-file",
        )
    chunks: dict[str, list[Chunk]] = {}
    dtypes: dict[str, str] = {}
    for name in names:
        file = read_weight_file(partial(files.pread, name), listing.entries[name], name)
        for tensor, offsets in _chunks(file):
            if dtypes.setdefault(tensor.name, tensor.dtype) != tensor.dtype:
                raise _malformed(name, f"stores {shown(tensor.name)} with another dtype than the other shards")
            chunks.setdefault(tensor.name, []).append(Chunk(offsets, tensor.shape, tensor.range, archive=False))
    return tuple(
        StoredChunks(name, dtypes[name], _shape(name, every), tuple(every), ()) for name, every in chunks.items()
    ), tuple(names)


def _chunks(file: WeightFile) -> Iterator[tuple[TensorRecord, tuple[int, ...]]]:
    text = (file.metadata or {}).get(_INFO)
    table = loads(text.encode(), f"{file.name} ({_INFO})", limit=_LIMIT) if text is not None else {}
    for tensor in file.tensors:
        entry = table.get(tensor.name)
        offsets = entry.get(_OFFSETS) if isinstance(entry, Mapping) else None
        if text is None:
            offsets = [0] * len(tensor.shape)
        if not isinstance(offsets, list) or len(offsets) != len(tensor.shape) or not all(map(natural, offsets)):
            raise _malformed(file.name, f"has no offset of {shown(tensor.name)} in {_INFO}")
        yield tensor, tuple(offsets)


def _shape(name: str, chunks: list[Chunk]) -> tuple[int, ...]:
    if len({len(chunk.shape) for chunk in chunks}) > 1:
        raise _malformed(chunks[0].range.file, f"stores {shown(name)} with another rank than the other shards")
    ends = ([start + side for start, side in zip(chunk.offsets, chunk.shape, strict=True)] for chunk in chunks)
    return tuple(map(max, zip(*ends, strict=True)))
