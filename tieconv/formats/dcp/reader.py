"""Read a torch distributed checkpoint (DCP): a `.metadata` pickle and `__<rank>_<n>.distcp` files. Read only.

The metadata lists all tensors, so no tensor byte is read. A tensor may be split into chunks over several files, and
each chunk is a separate torch archive.
Source: torch/distributed/checkpoint/metadata.py and filesystem.py of torch 2.13.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import NoReturn, TypeGuard

from tieconv.checkpoint.files.dtypes import BITS
from tieconv.checkpoint.files.interface import Files
from tieconv.checkpoint.files.model_files import Checkpoint, Layout, Listing
from tieconv.checkpoint.files.weight_file import ByteRange, TensorRecord, WeightFile
from tieconv.errors import UnreadableError, UnsafePathError
from tieconv.formats.dcp.names import METADATA, SUFFIX
from tieconv.formats.dcp.pickle import LIMIT, parse
from tieconv.formats.index import absent_shard
from tieconv.formats.torch.pickle.values import Global, Instance, Pairs
from tieconv.text import shown

NEXT_STEP = "convert it to a torch file: python -m torch.distributed.checkpoint.format_utils dcp_to_torch DIR OUT"

_DTYPES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2": "F8_E5M2",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "float8_e8m0fnu": "F8_E8M0",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
    "complex64": "C64",
}
_Places = dict[str, list[tuple[str, int, int]]]
"""Tensor name → file, offset and length of each chunk."""


def read_directory(listing: Listing, files: Files, format_name: str) -> Checkpoint:
    """Read the checkpoint that ``listing`` names. Raises `UnreadableError` with a stable code."""
    if METADATA not in listing.entries:
        raise UnreadableError(
            f"{shown(listing.source)} holds {SUFFIX} files but no {METADATA}",
            "fetch the missing file, or save the checkpoint again; the save may not have finished",
            "dcp.no-metadata",
        )
    data = files.pread(METADATA, min(files.state(METADATA).size, LIMIT) + 1, 0)
    metadata = _metadata(parse(data, METADATA, sum(listing.entries.values())))
    weights = tuple(_weight_files(metadata, _places(metadata, listing), listing))
    names = [METADATA, *(file.name for file in weights)]
    return Checkpoint(
        source=listing.source,
        root=listing.root,
        layout=Layout.SHARDED,
        format=format_name,
        files=weights,
        companions={name: size for name, size in listing.entries.items() if name not in names},
        special=listing.special,
        states={name: files.state(name) for name in names},
        read_only=NEXT_STEP,
        headers_only=True,
    )


def _metadata(value: object) -> dict[str, object]:
    if isinstance(value, Instance) and value.name.endswith(".Metadata"):
        fields = value.fields()
        if isinstance(fields.get("state_dict_metadata"), Pairs) and isinstance(fields.get("storage_data"), Pairs):
            return fields
    raise UnreadableError(
        f"{METADATA} is not the metadata of a torch distributed checkpoint",
        "save the checkpoint again",
        "dcp.malformed",
    )


def _places(metadata: dict[str, object], listing: Listing) -> _Places:
    """Return the file ranges of each tensor's chunks, checked against the existing files."""
    places: _Places = {}
    storage = metadata["storage_data"]
    assert isinstance(storage, Pairs)
    for index, info in storage.items:
        if not isinstance(index, Instance) or not isinstance(info, Instance):
            _refuse("an entry of storage_data is not an index and a location")
        name, fields = index.fields().get("fqn"), info.fields()
        file, start, size = fields.get("relative_path"), fields.get("offset"), fields.get("length")
        if not isinstance(name, str) or not isinstance(file, str):
            _refuse("an entry of storage_data has no tensor name or no file name")
        if not _natural(start) or not _natural(size):
            _refuse(f"{shown(name)} has no offset and length in {shown(file)}")
        _check_place(name, file, start + size, listing)
        places.setdefault(name, []).append((file, start, size))
    return places


def _check_place(name: str, file: str, end: int, listing: Listing) -> None:
    if "/" in file or "\\" in file or "\0" in file or file in {".", "..", ""}:
        raise UnsafePathError(
            f"{METADATA} places {shown(name)} in {shown(file)}, outside the checkpoint",
            "do not trust this checkpoint",
            "dcp.escape",
        )
    if file not in listing.entries:
        raise absent_shard(
            f"{METADATA} places {shown(name)} in", file, "dcp.absent-file", ": every rank writes a separate file"
        )
    if end > listing.entries[file]:
        raise UnreadableError(
            f"{shown(file)} ends at byte {listing.entries[file]:,} but {shown(name)} reaches to {end:,}",
            "the copy may be incomplete; fetch the file again",
            "dcp.truncated",
        )


def _weight_files(metadata: dict[str, object], places: _Places, listing: Listing) -> Iterator[WeightFile]:
    """Yield each file with the tensors whose first chunk it holds."""
    homes: dict[str, list[TensorRecord]] = {file: [] for chunks in places.values() for file, _, _ in chunks}
    entries = metadata["state_dict_metadata"]
    assert isinstance(entries, Pairs)
    seen: set[str] = set()
    for name, entry in entries.items:
        if not isinstance(name, str) or not isinstance(entry, Instance):
            _refuse("an entry of state_dict_metadata has no name")
        if name in seen:
            _refuse(f"{shown(name)} is repeated")
        seen.add(name)
        if entry.name.endswith(".TensorStorageMetadata"):
            record = _record(name, entry.fields(), places)
            homes[record.range.file].append(record)
    for file in sorted(homes):
        yield WeightFile(file, listing.entries[file], 0, tuple(homes[file]), None)


def _record(name: str, fields: dict[str, object], places: _Places) -> TensorRecord:
    """Return the record of one tensor. Its range gives the dense size and the first file, not the offset."""
    shape = _shape(name, fields.get("size"))
    dtype = _dtype(name, fields.get("properties"))
    if name not in places:
        _refuse(f"{shown(name)} has no stored chunk")
    nbytes = prod(shape) * BITS.get(dtype, 8) // 8
    if nbytes >= 1 << 63:
        _refuse(f"{shown(name)} has a size that overflows 64 bits")
    return TensorRecord(name, dtype, shape, ByteRange(min(places[name])[0], 0, nbytes))


def _shape(name: str, size: object) -> tuple[int, ...]:
    if isinstance(size, Instance) and len(size.arguments) == 1:
        (shape,) = size.arguments
        if isinstance(shape, tuple) and len(shape) <= 64 and all(map(_natural, shape)):
            return shape
    return _refuse(f"{shown(name)} has no shape")


def _dtype(name: str, properties: object) -> str:
    state = properties.state if isinstance(properties, Instance) else None
    first = state[0] if isinstance(state, tuple) and state else None
    if isinstance(first, Global) and first.name.startswith("torch."):
        short = first.name.removeprefix("torch.")
        return _DTYPES.get(short, short)
    return _refuse(f"{shown(name)} has no dtype")


def _natural(value: object) -> TypeGuard[int]:
    return type(value) is int and 0 <= value < 1 << 63


def _refuse(why: str) -> NoReturn:
    raise UnreadableError(f"{METADATA}: {why}", "save the checkpoint again", "dcp.malformed")
