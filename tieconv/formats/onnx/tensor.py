"""Convert a graph's tensors to records with their bytes in the file, in external data or in number fields."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from pathlib import PurePosixPath
from typing import NoReturn, Protocol

from tieconv.checkpoint.model_files import LARGEST, ByteReader, Files
from tieconv.checkpoint.value_type import record
from tieconv.checkpoint.weight_file import ByteRange, TensorRecord
from tieconv.errors import UnreadableError, UnsafePathError
from tieconv.formats.onnx.messages import BYTES, STRING, VARINT, Field, Tensor, Wire
from tieconv.text import count, shown

TYPES: dict[int, tuple[str, int]] = {
    1: ("F32", 32), 2: ("U8", 8), 3: ("I8", 8), 4: ("U16", 16), 5: ("I16", 16), 6: ("I32", 32), 7: ("I64", 64),
    9: ("BOOL", 8), 10: ("F16", 16), 11: ("F64", 64), 12: ("U32", 32), 13: ("U64", 64), 14: ("C64", 64),
    15: ("C128", 128), 16: ("BF16", 16), 17: ("F8_E4M3", 8), 18: ("F8_E4M3FNUZ", 8), 19: ("F8_E5M2", 8),
    20: ("F8_E5M2FNUZ", 8), 21: ("U4", 4), 22: ("I4", 4), 23: ("F4_E2M1", 4), 24: ("F8_E8M0", 8), 25: ("U2", 2),
    26: ("I2", 2),
}  # fmt: skip
"""Maps each ONNX type number to the dtype name of tieconv and the bits of an element."""
_FLOATS, _INT32, _STRINGS, _INT64, _DOUBLES, _UINT64 = 4, 5, 6, 7, 10, 11
_SPELT = {1: _FLOATS, 7: _INT64, 11: _DOUBLES, 12: _UINT64, 13: _UINT64, 14: _FLOATS, 15: _DOUBLES}
"""The field with the numbers of a type outside `raw_data`. Other types use int32_data."""
SPELT_LIMIT = 64_000_000
"""The most bytes of numbers in varint fields. tieconv must read them to count them; weights never use them."""
_CONTINUED = bytes(range(0x80, 0x100))


@record
class SpeltRange(ByteRange):
    """The bytes of a tensor that the file stores as numbers of ``width`` bytes in the fields ``places``.

    ``start`` is the tensor's offset in the file, which identifies it. ``end`` is ``start`` plus its number of bytes.
    """

    places: tuple[Field, ...]
    width: int


def needed_bytes(kind: int, dims: Sequence[int]) -> int | None:
    """Return the bytes of a tensor of that type and shape, or ``None`` for a type without a fixed width."""
    if kind not in TYPES:
        return None
    return -(-prod(max(side, 0) for side in dims) * TYPES[kind][1] // 8)


def read_tensor(wire: Wire, tensor: Tensor, name: str, root: str, files: Files) -> TensorRecord:
    """Return the record of an initializer. Raises `UnreadableError` if type, shape and bytes disagree."""
    dims = tuple(tensor.dims)
    subject = f"holds the tensor {shown(tensor.name)}"
    if any(side < 0 for side in dims):
        wire.refuse(f"{subject} with a negative dimension", "shape")
    needed = needed_bytes(tensor.kind, dims)
    dtype = TYPES[tensor.kind][0] if needed is not None else "STRING" if tensor.kind == STRING else str(tensor.kind)
    span = _span(wire, tensor, needed, root, files)
    if needed is not None and span.size != needed:
        wire.refuse(f"{subject}, which needs {count(needed, 'byte')} but has {span.size:,}", "tensor-size")
    return TensorRecord(name, dtype, dims, span, storage=span.file)


def _span(wire: Wire, tensor: Tensor, needed: int | None, root: str, files: Files) -> ByteRange:
    if tensor.external:
        return byte_range(External(wire.name, tensor.name, tensor.entries, needed), root, files)
    if tensor.raw is not None:
        return ByteRange(wire.name, *tensor.raw)
    if needed is None:
        return ByteRange(wire.name, *tensor.whole)
    number = _SPELT.get(tensor.kind, _INT32)
    places = tuple(field for field in tensor.typed if field[0] == number)
    width = {_FLOATS: 4, _DOUBLES: 8}.get(number, max(TYPES[tensor.kind][1] // 8, 1))
    if len(places) == 1 and number in (_FLOATS, _DOUBLES):
        return ByteRange(wire.name, *places[0][2:])
    count = sum(_count(wire, field, width) for field in places)
    start = tensor.whole[0]
    return SpeltRange(wire.name, start, start + count * width, places, width)


def _count(wire: Wire, field: Field, width: int) -> int:
    number, kind, start, end = field
    if kind != BYTES:
        return 1
    if end - start > SPELT_LIMIT:
        wire.refuse(f"stores {end - start:,} bytes as single numbers, more than the limit of {SPELT_LIMIT:,}", "spelt")
    if number in (_FLOATS, _DOUBLES):
        return (end - start) // width
    # The last byte of every varint is below 0x80, and no other byte is.
    return len(wire.take(start, end).translate(None, _CONTINUED))


class _Reader(ByteReader, Protocol):
    """The reader of all other tensors."""

    @property
    def bytes_read(self) -> int: ...


class SpeltReader:
    """A `ByteReader` that also reads `SpeltRange` and forwards other reads. Caches the last decoded tensor."""

    def __init__(self, files: Files, inner: _Reader) -> None:
        self._files, self._inner = files, inner
        self._cached: tuple[SpeltRange, bytes] | None = None
        self.costly = bool(getattr(files, "costly", False))

    @property
    def bytes_read(self) -> int:
        return self._inner.bytes_read

    def read_into(self, span: ByteRange, offset: int, buffer: memoryview) -> None:
        """Fill ``buffer`` with the bytes at ``offset`` of ``span``. Raises the errors of the inner reader."""
        if not isinstance(span, SpeltRange):
            self._inner.read_into(span, offset, buffer)
            return
        if self._cached is None or self._cached[0] != span:
            self._cached = (span, b"".join(_spell(self._files, span)))
        target = buffer.cast("B")
        target[:] = self._cached[1][offset : offset + len(target)]


def _spell(files: Files, span: SpeltRange) -> Iterator[bytes]:
    mask = (1 << 8 * span.width) - 1
    for number, kind, start, end in span.places:
        data = files.pread(span.file, end - start, start) if kind != VARINT else b""
        if number in (_FLOATS, _DOUBLES):
            yield data
            continue
        made = bytearray()
        value = shift = 0
        for byte in data:
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                made += (value & mask).to_bytes(span.width, "little")
                value = shift = 0
        yield bytes(made) if kind != VARINT else (start & mask).to_bytes(span.width, "little")


# Check where an ONNX graph stores its external data, before a byte of it is read.
@record
class External:
    """A tensor with external data: the graph's file name, the tensor's name and its ``external_data`` entries.

    ``needed`` is the number of bytes of its type and shape, or ``None`` if unknown.
    """

    graph: str
    name: str
    entries: Mapping[str, str]
    needed: int | None


def byte_range(tensor: External, root: str, files: Files) -> ByteRange:
    """Return the byte range of the external data, relative to ``root``.

    Raises `UnsafePathError` for a path outside the graph's directory, and for a link. Raises `UnreadableError` if
    offset and length do not fit the file, the type or the shape.
    """
    location = tensor.entries.get("location", "")
    parts = PurePosixPath(location)
    if not location or "\0" in location or "\\" in location or parts.is_absolute() or ".." in parts.parts:
        problem = f"{shown(tensor.graph)}: tensor {shown(tensor.name)} is stored in {shown(location)!r}"
        hint = "if you trust the file, move the data beside the graph and export the model again"
        raise UnsafePathError(f"{problem}, outside the model's directory", hint, "onnx.outside")
    name = os.path.normpath(os.path.join(os.path.dirname(tensor.graph), location))
    local = os.path.isabs(root)  # a repository on the Hub has no links
    if local:
        _check_links(tensor, name, root)
        if not os.path.exists(os.path.join(root, name)):
            problem = f"{shown(tensor.graph)} stores its weights in {shown(name)}, which is missing"
            hint = f"fetch {shown(name)} into the directory of the graph, or export the model again"
            raise UnreadableError(problem, hint, "onnx.external")
    files.state(name)  # raises the error of a special file
    if local and os.lstat(os.path.join(root, name)).st_nlink > 1:
        _linked(tensor, name, "has several hard links")
    size = files.state(name).size
    start, length = _number(tensor, "offset") or 0, _number(tensor, "length")
    needed = tensor.needed
    end = start + (size - start if length is None else length)
    if needed is not None and length is None:
        end = start + needed
    if start > size or end > size or (needed is not None and end - start != needed):
        files.pread(name, LARGEST, 0)  # raises the error of a Git pointer file
        needed = end - start if needed is None else needed
        _unreadable(tensor, f"needs {count(needed, 'byte')} at offset {start} of {shown(name)}, which has {size:,}")
    return ByteRange(name, start, end)


def _check_links(tensor: External, name: str, root: str) -> None:
    path = root
    for part in PurePosixPath(name).parts:
        path = os.path.join(path, part)
        try:
            linked = stat.S_ISLNK(os.lstat(path).st_mode)
        except OSError:
            return
        if linked:
            _linked(tensor, name, "is a symlink")


def _linked(tensor: External, name: str, why: str) -> NoReturn:
    problem = f"{shown(tensor.graph)}: tensor {shown(tensor.name)} is stored in {shown(name)}, which {why}"
    hint = "if you trust the file, replace the link with a copy, or fetch the model with hf download --local-dir"
    raise UnsafePathError(problem, hint, "onnx.linked")


def _number(tensor: External, key: str) -> int | None:
    text = tensor.entries.get(key)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        _unreadable(tensor, f"has the {key} {shown(text)!r}, which is not a number")
    return int(text)


def _unreadable(tensor: External, why: str) -> NoReturn:
    problem = f"{shown(tensor.graph)}: tensor {shown(tensor.name)} {why}"
    raise UnreadableError(problem, "fetch or export the model again", "onnx.external")
