"""safetensors, read strictly by its specification and written with headers of our choosing.

Source: the safetensors format description and `Metadata::validate` of safetensors 0.8. Stricter than
that reader in two places: no white space before the `{`, no repeated key at any depth.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import NoReturn

from tieconv.checkpoint.dtypes import BITS, nbytes
from tieconv.checkpoint.records import ByteRange, TensorRecord, WeightFile
from tieconv.errors import UnreadableError
from tieconv.formats.strict_json import loads
from tieconv.text import shown

SUFFIX = ".safetensors"
HEADER_LIMIT = 100_000_000
"""The largest header in bytes; the reference reader's own limit."""
PAGE = 4096
"""File systems share whole blocks only: offsets that agree modulo this can be shared."""
MAX_RANK = 64

Pread = Callable[[int, int], bytes]
"""``pread(size, offset)``: up to ``size`` bytes at ``offset`` of one file."""


def read_weight_file(pread: Pread, size: int, name: str) -> WeightFile:
    """The tensors of one file, from its header alone. Raises `UnreadableError` with a stable code."""
    length = _header_length(pread, size, name)
    raw = pread(length, 8)
    if len(raw) != length:
        _refuse(name, "ends inside its header", "truncated-header")
    if not raw.startswith(b"{"):
        _refuse(name, "has a header that does not start with `{`", "header-start")
    header = loads(raw, f"{name} (header)", limit=HEADER_LIMIT)
    metadata = _metadata(header.pop("__metadata__", None), name)
    data_start = 8 + length
    records = [_record(key, value, name, data_start) for key, value in header.items()]
    records.sort(key=lambda record: (record.range.start, record.range.end))
    _check_coverage(records, data_start, size, name)
    return WeightFile(name, size, data_start, tuple(records), metadata)


def _header_length(pread: Pread, size: int, name: str) -> int:
    if size == 0:
        _refuse(name, "is empty", "empty", "download or save it again")
    first = pread(min(size, 512), 0)
    _check_disguise(first, name)
    if size < 10:
        _refuse(name, f"has {size} bytes, too few for a header", "too-small")
    length = int.from_bytes(first[:8], "little")
    if length > HEADER_LIMIT:
        _refuse(name, f"declares a header of {length:,} bytes (limit {HEADER_LIMIT:,})", "header-too-large")
    if 8 + length > size:
        _refuse(
            name,
            f"declares a header of {length:,} bytes but has {size:,} in all",
            "truncated-header",
            "the download may be incomplete; fetch the file again",
        )
    return length


def _check_disguise(first: bytes, name: str) -> None:
    """Files of another kind under this name, by their first bytes."""
    if first.startswith(b"version https://git-lfs"):
        _refuse(name, "is a Git LFS pointer, not the weights", "lfs-pointer", "git lfs pull")
    if first.lstrip()[:15].lower().startswith((b"<!doctype html", b"<html")):
        _refuse(name, "is an HTML page, not weights", "html", "the download failed; fetch the file again")
    if first.startswith(b"PK\x03\x04"):
        _refuse(name, "is a zip archive (a torch file?), not safetensors", "zip", "rename it to .bin")
    if first.startswith(b"GGUF"):
        _refuse(name, "is a GGUF file, not safetensors", "gguf", "rename it to .gguf")


def _metadata(value: object, name: str) -> Mapping[str, str] | None:
    if value is None:
        return None
    if not isinstance(value, dict) or not all(isinstance(entry, str) for entry in value.values()):
        _refuse(name, "has a __metadata__ that is no map of strings to strings", "metadata")
    return value


def _record(name: str, value: object, file: str, data_start: int) -> TensorRecord:
    def refuse(why: str, code: str) -> NoReturn:
        _refuse(file, f"tensor {shown(name)} {why}", code)

    if not isinstance(value, dict) or set(value) != {"dtype", "shape", "data_offsets"}:
        refuse("has no entry of dtype, shape and data_offsets", "entry")
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or not dtype:
        refuse("has no dtype name", "dtype")
    if not isinstance(shape, list) or len(shape) > MAX_RANK or not all(map(_natural, shape)):
        refuse("has a shape that is no list of sizes", "shape")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_natural, offsets)):
        refuse("has data_offsets that are no pair of offsets", "offsets")
    start, end = offsets
    if start > end:
        refuse(f"ends at byte {end}, before its start {start}", "offsets")
    _check_width(dtype, tuple(shape), end - start, refuse)
    return TensorRecord(name, dtype, tuple(shape), ByteRange(file, data_start + start, data_start + end))


def _check_width(dtype: str, shape: tuple[int, ...], size: int, refuse: Callable[[str, str], NoReturn]) -> None:
    """The declared bytes against shape × dtype. An unknown dtype is carried as bytes: nothing to check."""
    if dtype not in BITS:
        return
    expected = nbytes(dtype, shape)
    if expected is None:
        refuse(f"of dtype {dtype} does not end on a whole byte", "sub-byte")
    if expected > 1 << 63:
        refuse("has a shape whose size overflows 64 bits", "overflow")
    if expected != size:
        refuse(f"of dtype {dtype} and shape {list(shape)} needs {expected:,} bytes but declares {size:,}", "width")


def _natural(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def _check_coverage(records: list[TensorRecord], data_start: int, size: int, name: str) -> None:
    """Tensors cover the data without overlap, hole or trailing bytes, as the format demands."""
    position = data_start
    for record in records:
        start, end = record.range.start, record.range.end
        if end > size:
            _refuse(
                name,
                f"ends at byte {size:,} but tensor {shown(record.name)} reaches to {end:,}",
                "truncated",
                "the download may be incomplete; fetch the file again",
            )
        if start < position:
            _refuse(name, f"tensor {shown(record.name)} overlaps the one before it", "overlap")
        if start > position:
            _refuse(name, f"{start - position:,} bytes before tensor {shown(record.name)} belong to none", "hole")
        position = end
    if position != size:
        _refuse(name, f"{size - position:,} bytes after the last tensor belong to none", "trailing")


def _refuse(name: str, why: str, code: str, hint: str = "") -> NoReturn:
    separator = ": " if why.startswith(("tensor ", *"0123456789")) else " "
    raise UnreadableError(
        f"{shown(name)}{separator}{why}",
        hint or "only well-formed safetensors files are read; save it again with the tool that wrote it",
        f"safetensors.{code}",
    )


def encode_header(
    tensors: Iterable[tuple[str, str, tuple[int, ...], int]],
    metadata: Mapping[str, str] | None,
    *,
    congruent: Callable[[int], int] | None = None,
) -> bytes:
    """The first bytes of a file: length, JSON, padding spaces.

    ``tensors`` are (name, dtype, shape, bytes) in the order of their data, which follows without gaps.
    The header's own length is a multiple of 8. ``congruent(data_start)``, given the smallest possible offset
    of the first data byte, answers how many further bytes of padding (a multiple of 8 is not required by
    readers) make that offset fit the source's, so that a file system can share blocks.
    """
    header: dict[str, object] = {}
    if metadata is not None:
        header["__metadata__"] = dict(metadata)
    position = 0
    for name, dtype, shape, size in tensors:
        if name == "__metadata__" or name in header:
            raise UnreadableError(f"tensor name {shown(name)} cannot be written", "", "safetensors.name")
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, position + size]}
        position += size
    body = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    body += b" " * (-len(body) % 8)
    if congruent is not None:
        body += b" " * congruent(8 + len(body))
    if len(body) > HEADER_LIMIT:
        raise UnreadableError(f"the header would take {len(body):,} bytes", "", "safetensors.header-too-large")
    return len(body).to_bytes(8, "little") + body


