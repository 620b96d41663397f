"""Find facts about one tensor's values without an arithmetic library: all zero, largest, any NaN."""

from __future__ import annotations

import struct
import sys
from array import array

from tieconv.checkpoint.model_files import ByteReader
from tieconv.checkpoint.tie_group import BiasState
from tieconv.checkpoint.value_type import record
from tieconv.checkpoint.weight_file import ByteRange, TensorRecord
from tieconv.inspection.view_reader import readable, stream


@record
class _Layout:
    """How a float type is stored: array codes of its width, its infinity, and its NaN's top bytes."""

    unsigned: str
    signed: str
    infinity: int
    exponent_bytes: bytes

    @property
    def width(self) -> int:
        return array(self.unsigned).itemsize


_LAYOUTS = {
    "F16": _Layout("H", "h", 0x7C00, bytes((*range(0x7C, 0x80), *range(0xFC, 0x100)))),
    "BF16": _Layout("H", "h", 0x7F80, b"\x7f\xff"),
    "F32": _Layout("I", "i", 0x7F80_0000, b"\x7f\xff"),
    "F64": _Layout("Q", "q", 0x7FF0_0000_0000_0000, b"\x7f\xff"),
}
"""By type. ``exponent_bytes`` are the values of the most significant byte that a NaN may have."""


def all_zero(reader: ByteReader, span: ByteRange) -> bool:
    """Return whether every byte of ``span`` is zero (so -0.0 is not), reading up to the first other byte."""
    zeros = b""
    for block in stream(reader, span, holes=False):
        if len(zeros) != len(block):
            zeros = bytes(len(block))
        if block != zeros:
            return False
    return True


def bias_summary(reader: ByteReader, record: TensorRecord) -> tuple[BiasState, float | None]:
    """Return whether a bias is zero, and its largest magnitude.

    A float bias is zero if each value is +0 or -0; for any other type only zero bytes count. The magnitude is ``None``
    for other types and if a value is infinite or NaN. Raises what the reader raises.
    """
    reader, (record,) = readable(reader, (record,))
    layout = _LAYOUTS.get(record.dtype)
    if layout is None:
        zero = all_zero(reader, record.range)
        return (BiasState.ZERO, 0.0) if zero else (BiasState.NONZERO, None)
    largest = max((_largest(block, layout) for block in stream(reader, record.range, holes=False)), default=0)
    if largest >= layout.infinity:
        return BiasState.NONZERO, None
    return (BiasState.NONZERO if largest else BiasState.ZERO), _decode(largest, record.dtype)


def has_nan(reader: ByteReader, record: TensorRecord) -> bool:
    """Return whether a F16, BF16, F32 or F64 tensor holds a NaN; ``False`` for types never interpreted here.

    Raises what the reader raises.
    """
    known: bool | None = getattr(reader, "nans", {}).get(record.range)
    if known is not None:
        return known
    reader, (record,) = readable(reader, (record,))
    layout = _LAYOUTS.get(record.dtype)
    if layout is None:
        return False
    return any(
        _may_hold_nan(block, layout) and _largest(block, layout) > layout.infinity
        for block in stream(reader, record.range, holes=False)
    )


class NanWatch:
    """Watch the blocks of a tensor for a NaN, for a reader that keeps the answer (``nans``)."""

    def __init__(self, reader: ByteReader, record: TensorRecord) -> None:
        self._known_ranges: dict[ByteRange, bool] | None = getattr(reader, "nans", None)
        self._layout = _LAYOUTS.get(record.dtype) if self._known_ranges is not None else None
        self._range, self._holds_nan, self._seen = record.range, False, 0

    def __call__(self, block: bytearray) -> None:
        layout = self._layout
        self._seen += len(block)
        if layout is not None and not self._holds_nan:
            self._holds_nan = _may_hold_nan(block, layout) and _largest(block, layout) > layout.infinity

    def keep(self) -> None:
        """Keep the answer if all blocks have passed."""
        if self._known_ranges is not None and self._layout is not None and self._seen == self._range.size:
            self._known_ranges[self._range] = self._holds_nan


def _may_hold_nan(block: bytearray, layout: _Layout) -> bool:
    top_bytes = block[layout.width - 1 :: layout.width]
    return any(byte in top_bytes for byte in layout.exponent_bytes)


def _largest(block: bytearray, layout: _Layout) -> int:
    """Return the largest magnitude in a block as an integer: IEEE magnitudes have the order of their bits.

    Read as signed integers, the largest number is that of a positive value; as unsigned, of a negative one.
    """
    positive = max(_integers(block, layout.signed), default=0)
    highest = max(_integers(block, layout.unsigned), default=0)
    sign = 1 << (8 * layout.width - 1)
    return max(positive, highest & (sign - 1) if highest & sign else 0)


def _integers(block: bytearray, code: str) -> array[int]:
    numbers = array(code)
    numbers.frombytes(block)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def _decode(magnitude: int, dtype: str) -> float:
    """Return the value of a finite magnitude."""
    if dtype == "BF16":
        magnitude, dtype = magnitude << 16, "F32"
    packing, value_code = {"F16": ("<H", "<e"), "F32": ("<I", "<f"), "F64": ("<Q", "<d")}[dtype]
    value: float = struct.unpack(value_code, struct.pack(packing, magnitude))[0]
    return value
