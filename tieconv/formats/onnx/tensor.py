"""Convert a graph's tensors to records with their bytes in the file, in external data or in number fields."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Protocol

from tieconv.checkpoint.files.interface import ByteReader, Files
from tieconv.checkpoint.files.weight_file import ByteRange, TensorRecord
from tieconv.checkpoint.value_type import record
from tieconv.formats.onnx.external import External, byte_range
from tieconv.formats.onnx.message_reader import STRING
from tieconv.formats.onnx.messages import Tensor
from tieconv.formats.onnx.protobuf import BYTES, VARINT, Field, Wire
from tieconv.text import shown

TYPES: dict[int, tuple[str, int]] = {
    1: ("F32", 32),
    2: ("U8", 8),
    3: ("I8", 8),
    4: ("U16", 16),
    5: ("I16", 16),
    6: ("I32", 32),
    7: ("I64", 64),
    9: ("BOOL", 8),
    10: ("F16", 16),
    11: ("F64", 64),
    12: ("U32", 32),
    13: ("U64", 64),
    14: ("C64", 64),
    15: ("C128", 128),
    16: ("BF16", 16),
    17: ("F8_E4M3", 8),
    18: ("F8_E4M3FNUZ", 8),
    19: ("F8_E5M2", 8),
    20: ("F8_E5M2FNUZ", 8),
    21: ("U4", 4),
    22: ("I4", 4),
    23: ("F4_E2M1", 4),
    24: ("F8_E8M0", 8),
    25: ("U2", 2),
    26: ("I2", 2),
}
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
        wire.refuse(f"{subject}, which needs {needed:,} bytes but has {span.size:,}", "tensor-size")
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
