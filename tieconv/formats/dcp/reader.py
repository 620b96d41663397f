"""Read a torch distributed checkpoint (DCP): a `.metadata` pickle and `__<rank>_<n>.distcp` files.

The metadata lists all tensors, so no tensor byte is read. A tensor may be split into chunks over several files, and
each chunk is a separate torch archive. `tieconv.inspection.chunks.chunk_reader` reads their values.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from tieconv.checkpoint.files.cautions import Caution
from tieconv.checkpoint.files.chunks import ChunkTable
from tieconv.checkpoint.files.dtypes import BITS
from tieconv.checkpoint.files.interface import Files
from tieconv.checkpoint.files.model_files import Checkpoint, Document, Layout, Listing
from tieconv.checkpoint.files.weight_file import ByteRange, TensorRecord, WeightFile
from tieconv.errors import UnreadableError
from tieconv.formats.dcp.chunk_metadata import StoredChunks, read_metadata
from tieconv.formats.dcp.coverage import overlaps
from tieconv.formats.dcp.names import METADATA, SUFFIX, TENSORS
from tieconv.formats.dcp.safetensors_shards import is_sharded_safetensors, read_shards
from tieconv.formats.dcp.training_state import is_training_state
from tieconv.formats.documents import CONFIG, read_config
from tieconv.text import command, shown


def read_directory(listing: Listing, files: Files, format_name: str) -> Checkpoint:
    """Read the checkpoint that ``listing`` names. Raises `UnreadableError` with a stable code."""
    if is_sharded_safetensors(listing):
        tensors, names = read_shards(listing, files)
        return _checkpoint(listing, files, format_name, tensors, names, "", True)
    if METADATA not in listing.entries:
        raise UnreadableError(
            f"{shown(listing.source)} holds {SUFFIX} files but no {METADATA}",
            "fetch the missing file, or save the checkpoint again; the save may not have finished",
            "dcp.no-metadata",
        )
    metadata = read_metadata(listing, files)
    readable = not metadata.transformed
    return _checkpoint(listing, files, format_name, metadata.tensors, metadata.files, METADATA, readable)


def _checkpoint(
    listing: Listing,
    files: Files,
    format_name: str,
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
    return Checkpoint(
        source=listing.source,
        root=listing.root,
        layout=Layout.SHARDED,
        format=format_name,
        files=weights,
        config=config,
        companions={name: size for name, size in listing.entries.items() if name not in used},
        special=listing.special,
        cautions=cautions,
        states={name: files.state(name) for name in sorted(used)},
        read_only=f"convert it first: {command('convert', listing.source, '--to', 'safetensors', '-o', 'OUT')}",
        headers_only=hasattr(files, "client") or not readable,
        table=table,
    )


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
        record = _record(tensor, position, source)
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


def _record(tensor: StoredChunks, start: int, source: str) -> TensorRecord:
    """Return the record of one tensor: its dense bytes, behind those of the tensors before it."""
    nbytes = prod(tensor.shape) * BITS.get(tensor.dtype, 8) // 8
    if nbytes >= 1 << 63:
        raise UnreadableError(
            f"{source}: {shown(tensor.name)} has a size that overflows 64 bits",
            "save the checkpoint again",
            "dcp.malformed",
        )
    return TensorRecord(tensor.name, tensor.dtype, tensor.shape, ByteRange(TENSORS, start, start + nbytes))
