"""Find how one stored tensor relates to another, by proof over every byte.

Equality needs only the standard library; numpy is imported when a rounding or a difference is computed.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from math import inf, isfinite
from typing import TYPE_CHECKING

from tieconv.checkpoint.model_files import ByteReader
from tieconv.checkpoint.relation import proved
from tieconv.checkpoint.tie_group import BiasState
from tieconv.checkpoint.value_type import record
from tieconv.checkpoint.weight_file import BITS, FLOATS, QUANTISED, ByteRange, TensorRecord, nbytes
from tieconv.inspection import view_reader
from tieconv.inspection.storage import sharing

if TYPE_CHECKING:
    from tieconv.inspection.numeric.rows import Difference


NEAR_RMS = 1e-2
"""Largest rms of the difference, relative to the canonical rms, for tensors to count as near."""

NEAR_ROWS = 0.5
"""Largest share of differing rows for tensors to count as near, however large the difference."""


def relate(reader: ByteReader, canonical: TensorRecord, compared: TensorRecord) -> proved.Compared | proved.Unread:
    """Return how ``compared`` relates to ``canonical``: identical, transposed, cast, scaled, near or distinct.

    Returns the first state that can be proved, with its figures. Integers and quantised codes are only compared as
    bytes. Raises what the reader raises.
    """
    known = sharing(canonical, compared)
    if known is not None:
        return known
    reader, (canonical, compared) = view_reader.readable(reader, (canonical, compared))
    watch = NanWatch(reader, canonical)
    if ((canonical.dtype, canonical.shape) == (compared.dtype, compared.shape)) and equal(
        reader, canonical.range, compared.range, watch
    ):
        watch.keep()
        return proved.Identical()
    if transposed(reader, canonical, compared):
        return proved.Transposed()
    if canonical.shape != compared.shape:
        if canonical.elements and not compared.elements:
            return proved.Empty()
        # Whether both are stacks of rows of the same type and of whole bytes.
        if not (
            canonical.shape
            and compared.shape
            and canonical.dtype == compared.dtype
            and canonical.shape[1:] == compared.shape[1:]
            and canonical.nbytes * compared.shape[0] == compared.nbytes * canonical.shape[0]
            and nbytes(canonical.dtype, canonical.shape[1:])
        ):
            return proved.OtherShape(compared.shape, canonical.shape)
        rows, canonical_rows = compared.shape[0], canonical.shape[0]
        row_bytes = max(canonical.nbytes, compared.nbytes) // max(rows, canonical_rows)
        prefix = common_prefix(reader, canonical.range, compared.range)
        return proved.OtherShape(compared.shape, canonical.shape, prefix // row_bytes, rows - canonical_rows)
    reason = _incomparable(canonical, compared)
    if reason:
        return proved.OtherBytes(reason)
    if not _has_numpy() and canonical.dtype != compared.dtype:
        return proved.Unread(reason=proved.TYPES_NEED_NUMPY)
    if not _has_numpy():
        return _differing_rows(reader, canonical, compared)
    from tieconv.inspection.numeric.bits import Pair
    from tieconv.inspection.numeric.rows import difference

    cast = relate_cast(reader, canonical, compared)
    if cast:
        return cast
    scaled = _scaled(reader, canonical, compared)
    if scaled:
        return scaled
    differences = difference(Pair(reader, canonical, compared))
    figures = _figures(differences, same_dtype=canonical.dtype == compared.dtype)
    rms = figures.relative_rms  # 0 if only the sign of zeros differs
    if figures.rows_differing <= NEAR_ROWS * figures.rows or (rms is not None and rms <= NEAR_RMS):
        return proved.Near(figures)
    return proved.Different(figures, differences.cosine)


def relate_cast(reader: ByteReader, left: TensorRecord, right: TensorRecord) -> proved.Cast | None:
    """Return the `Cast` relation of two float tensors of one shape and two types, or ``None``.

    Raises what the reader raises.
    """
    if left.dtype == right.dtype or left.shape != right.shape or _incomparable(left, right) or not _has_numpy():
        return None
    from tieconv.inspection.numeric.bits import Pair, cast_direction

    direction = cast_direction(Pair(reader, left, right))
    if direction is None:
        return None
    pair, lossless, nan = direction
    return proved.Cast(exact=pair.left.name, narrow=pair.right.name, lossless=lossless, nan=nan)


def _incomparable(canonical: TensorRecord, compared: TensorRecord) -> str:
    """Return why tensors of one shape cannot be compared as numbers; empty if they can."""
    for tensor in (canonical, compared):
        if tensor.dtype in QUANTISED:
            return f"{tensor.dtype} values may be quantised codes, so tieconv compares only their bytes"
        if tensor.dtype not in FLOATS:
            return f"tieconv compares {tensor.dtype} values only as bytes"
        if tensor.nbytes != nbytes(tensor.dtype, tensor.shape):
            return f"the bytes of {tensor.name} do not match its shape"
        if not tensor.elements:
            return "the tensors are empty and of different types"
    return ""


def _has_numpy() -> bool:
    return find_spec("numpy") is not None


def _differing_rows(reader: ByteReader, left: TensorRecord, right: TensorRecord) -> proved.Near | proved.OtherBytes:
    """Count the rows that differ, by their bytes, and measure the first of them, with only the standard library."""
    rows = left.shape[0] if left.shape else 1
    width = left.nbytes // rows
    differing, counted, largest, zeros = 0, -1, 0.0, True
    for offset, size in view_reader.pieces(0, left.nbytes, max(1, view_reader.BLOCK // width) * width):
        for start, length in view_reader.pieces(offset, offset + size, view_reader.BLOCK):  # a long row in parts
            a, b = (view_reader.read(reader, record.range, start, length) for record in (left, right))
            for i in range(0, length, width) if a != b else ():
                if (part := a[i : i + width]) == (compared := b[i : i + width]):
                    continue
                row = (start + i) // width
                differing, counted = differing + (row != counted), row
                gap = _largest_difference(part, compared, left.dtype) if zeros or differing == 1 else 0.0
                zeros = zeros and not gap
                largest = max(largest, gap) if differing == 1 else largest
    if zeros:
        return proved.Near(proved.RowFigures(differing, rows, (), False, 0, 0.0, 0.0, True, 0))
    first = f", the first of them by at most {largest:.3g}" if isfinite(largest) else ""
    return proved.OtherBytes(f"{differing:,} of {rows:,} rows differ{first}; numpy measures the rest")


def _largest_difference(left: bytearray, right: bytearray, dtype: str) -> float:
    """Return the largest difference of two values; infinity if a value is not finite."""
    gaps = (abs(x - y) for x, y in zip(floats_of(left, dtype), floats_of(right, dtype), strict=True))
    return max(gap if isfinite(gap) else inf for gap in gaps)


def floats_of(raw: bytes | bytearray, dtype: str) -> Iterator[float]:
    """Return the numbers of F16, BF16, F32 or F64, with only the standard library."""
    if dtype == "BF16":  # the upper half of a float32
        wide = bytearray(2 * len(raw))
        wide[2::4], wide[3::4] = raw[::2], raw[1::2]
        raw = wide
    return (value for (value,) in struct.iter_unpack({"F16": "<e", "F64": "<d"}.get(dtype, "<f"), raw))


def _scaled(reader: ByteReader, canonical: TensorRecord, compared: TensorRecord) -> proved.Scaled | None:
    from tieconv.inspection.numeric.bits import Pair
    from tieconv.inspection.numeric.rows import scaling

    scale = scaling(Pair(reader, canonical, compared))
    if scale is None:
        return None
    forward = scale.pair.left is canonical
    factor = scale.factor if forward else 1 / scale.factor
    exact = scale.exact and forward  # only then does the canonical tensor alone restore the other one
    return proved.Scaled(factor, exact, scale.power_of_two, scale.max_ulp, scale.pair.right.name)


def _figures(differences: Difference, *, same_dtype: bool) -> proved.RowFigures:
    rows, nan_rows = differences.differing, differences.nan.count
    ranges = tuple((first, end) for first, end in rows.ranges)
    max_ulp = differences.max_ulp if same_dtype and not nan_rows else None
    max_abs = None if differences.unbounded else differences.max_abs
    return proved.RowFigures(
        rows_differing=rows.count,
        rows=differences.rows,
        row_ranges=ranges,
        rows_listed_completely=rows.complete,
        max_ulp=max_ulp,
        max_abs=max_abs,
        relative_rms=differences.relative_rms,
        sign_of_zero_only=differences.sign_of_zero_only,
        nan_rows=nan_rows,
    )


# Decide whether one matrix is the transpose of another: probe first, then prove over every element.


def transposable(a: TensorRecord, b: TensorRecord) -> bool:
    """Return whether ``b`` can be ``a`` transposed by shapes and types: matrices of whole-byte elements."""
    return (
        len(a.shape) == 2
        and a.shape == b.shape[::-1]
        and a.elements > 0
        and a.dtype == b.dtype
        and BITS.get(a.dtype, 1) % 8 == 0
        and a.nbytes == b.nbytes == a.elements * BITS[a.dtype] // 8
    )


def transposed(reader: ByteReader, a: TensorRecord, b: TensorRecord) -> bool:
    """Return whether ``b`` is ``a`` transposed, by the bits of every element. Raises what the reader raises."""
    if not transposable(a, b):
        return False
    if 1 in a.shape:
        return equal(reader, a.range, b.range)
    width = BITS[a.dtype] // 8
    if not all(
        view_reader.read(reader, a.range, (row * a.shape[1] + column) * width, width)
        == view_reader.read(reader, b.range, (column * b.shape[1] + row) * width, width)
        for row, column in _places(*a.shape)
    ):
        return False
    if not _has_numpy():
        reader, (left, right) = view_reader.readable(reader, view_reader.one_way(a, b))
        return equal(reader, left.range, right.range)
    from tieconv.inspection.numeric.bits import transpose_equal

    return transpose_equal(reader, a, b, BITS[a.dtype] // 8)


def _places(rows: int, columns: int) -> Iterator[tuple[int, int]]:
    """Yield the corners, then positions from a fixed linear congruential sequence."""
    yield from ((0, columns - 1), (rows - 1, 0))
    state = rows * columns
    for _ in range(64):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        yield (state >> 32) % rows, (state >> 8) % columns


HINT = "tieconv inspect --depth full compares every byte"


def relate_sampled(
    reader: ByteReader, canonical: TensorRecord, compared: TensorRecord
) -> proved.Identical | proved.Empty | proved.OtherShape | proved.OtherSample | proved.Unread:
    """Return `distinct` with the range that proves it, `identical` if file hashes prove that, else `unread`.

    It takes one sample at the middle of each tensor, because padding and untrained rows are at the ends. It takes no
    sample of tensors that may be transposed or cast. Raises what the reader raises.
    """
    if (canonical.dtype, canonical.shape) != (compared.dtype, compared.shape):
        if canonical.elements and not compared.elements:
            return proved.Empty()
        if canonical.shape == compared.shape:
            return proved.Unread(reason=f"the types differ: {HINT}")
        if canonical.shape == compared.shape[::-1]:
            return proved.Unread(reason=f"one may be the other transposed: {HINT}")
        return proved.OtherShape(compared.shape, canonical.shape)
    if same_file_range(reader, canonical.range, compared.range):
        return proved.Identical(by="file hash")
    if canonical.stride is not None or compared.stride is not None or not canonical.nbytes:
        return proved.Unread(reason=f"samples cannot prove a relation here: {HINT}")
    size = min(view_reader.SAMPLE, canonical.nbytes)
    offset = (canonical.nbytes - size) // 2 // view_reader.SAMPLE * view_reader.SAMPLE
    left, right = view_reader.announced(reader, [(record.range, offset, size) for record in (canonical, compared)])
    ranges = ((offset, offset + size),)
    if left != right:
        return proved.OtherSample(ranges)
    return proved.Unread(sampled=True, ranges_equal=ranges, reason=f"the sampled bytes are equal: {HINT}")


# Prove byte equality of stored tensors over every byte, with only the standard library.
def equal(reader: ByteReader, a: ByteRange, b: ByteRange, watch: Callable[[bytearray], object] = len) -> bool:
    """Return whether two ranges hold the same bytes: a NaN equals itself, -0.0 does not equal 0.0.

    Head, tail and middle samples refute most differing pairs. Ranges count as equal only after every byte of both was
    compared. ``watch`` receives the blocks of ``a`` that are read. Readers remember the larger ranges that were
    equal. Raises what the reader raises.
    """
    if a.size != b.size:
        return False
    if a == b or same_file_range(reader, a, b) or is_known_equal(reader, a, b):
        return True
    if a.size <= view_reader.SAMPLE:
        view_reader.announce(reader, [(a, 0, a.size), (b, 0, b.size)])
        data = view_reader.read(reader, a, 0, a.size)
        if data != view_reader.read(reader, b, 0, b.size):
            return False
        watch(data)
        return True
    if not (samples_equal(reader, a, b) and _lockstep_equal(reader, a, b, watch)):
        return False
    known: set[frozenset[ByteRange]] = getattr(reader, "equal_ranges", set())
    known.add(frozenset((a, b)))
    return True


def is_known_equal(reader: ByteReader, a: ByteRange, b: ByteRange) -> bool:
    """Return whether the reader remembers the two ranges as equal."""
    equal_ranges: set[frozenset[ByteRange]] = getattr(reader, "equal_ranges", set())
    return bool(equal_ranges) and frozenset((a, b)) in equal_ranges


def same_file_range(reader: ByteReader, a: ByteRange, b: ByteRange) -> bool:
    """Return whether both are the same range of files whose source knows, by hash, that they are equal."""
    known = getattr(reader, "content_id", None)
    if known is None or type(a) is not type(b) or replace(a, file=b.file) != b:
        return False
    file = known(a.file)
    return file is not None and file == known(b.file)


def samples_equal(reader: ByteReader, a: ByteRange, b: ByteRange) -> bool:
    """Return whether the samples of two ranges of the same size agree; only a difference is a proof."""
    samples = view_reader.sample_pieces(a.size)
    view_reader.announce(reader, [(span, offset, size) for offset, size in samples for span in (a, b)])
    return all(
        view_reader.read(reader, a, offset, size) == view_reader.read(reader, b, offset, size)
        for offset, size in samples
    )


def common_prefix(reader: ByteReader, a: ByteRange, b: ByteRange) -> int:
    """Return how many leading bytes two ranges of any size have in common; reads no further than that block."""
    size = min(a.size, b.size)
    left = view_reader.stream(reader, replace(a, end=a.start + size))
    right = view_reader.stream(reader, replace(b, end=b.start + size))
    done = 0
    for first, second in zip(left, right, strict=True):
        if first != second:
            # Bisection: the common prefix has at least ``low`` bytes and fewer than ``high``.
            low, high = 0, len(first)
            while high - low > 1:
                middle = (low + high) // 2
                if first[low:middle] == second[low:middle]:
                    low = middle
                else:
                    high = middle
            return done + low
        done += len(first)
    return done


def _lockstep_equal(reader: ByteReader, a: ByteRange, b: ByteRange, watch: Callable[[bytearray], object]) -> bool:
    # Whole bytearrays compare by memcmp; memoryviews compare item by item, five times slower.
    left, right = bytearray(min(view_reader.BLOCK, a.size)), bytearray(min(view_reader.BLOCK, a.size))
    for offset, size in view_reader.stored_pieces(reader, (a, b), 0, a.size, view_reader.BLOCK):
        if size < len(left):
            left, right = bytearray(size), bytearray(size)
        reader.read_into(a, offset, memoryview(left))
        reader.read_into(b, offset, memoryview(right))
        if left != right:
            return False
        watch(left)
    return True


# Find facts about one tensor's values without an arithmetic library: all zero, largest, any NaN.
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


def all_zero(reader: ByteReader, span: ByteRange, layout: _Layout | None = None) -> bool:
    """Return whether every byte of ``span`` is zero, reading up to the first block with another.

    With the ``layout`` of floats, -0.0 is zero too.
    """
    zeros = b""
    for block in view_reader.stream(reader, span, holes=False):
        if len(zeros) != len(block):
            zeros = bytes(len(block))
        if block != zeros and (layout is None or block.translate(None, b"\0\x80") or _largest(block, layout)):
            return False
    return True


def bias_summary(reader: ByteReader, record: TensorRecord) -> tuple[BiasState, float | None]:
    """Return whether a bias is zero, and its largest magnitude.

    A float bias is zero if each value is +0 or -0; for any other type only zero bytes count. The magnitude is ``None``
    for other types and if a value is infinite or NaN. Raises what the reader raises.
    """
    reader, (record,) = view_reader.readable(reader, (record,))
    layout = _LAYOUTS.get(record.dtype)
    if layout is None:
        zero = all_zero(reader, record.range)
        return (BiasState.ZERO, 0.0) if zero else (BiasState.NONZERO, None)
    largest = max(
        (_largest(block, layout) for block in view_reader.stream(reader, record.range, holes=False)), default=0
    )
    if largest >= layout.infinity:
        return BiasState.NONZERO, None
    (magnitude,) = floats_of(largest.to_bytes(layout.width, "little"), record.dtype)
    return (BiasState.NONZERO if largest else BiasState.ZERO), magnitude


def has_nan(reader: ByteReader, record: TensorRecord, *, or_infinity: bool = False) -> bool:
    """Return whether a F16, BF16, F32 or F64 tensor holds a NaN; ``False`` for types never interpreted here.

    With ``or_infinity`` an infinity counts too. Raises what the reader raises.
    """
    known: bool | None = getattr(reader, "nans", {}).get(record.range)
    if known is not None and (known or not or_infinity):
        return known
    reader, (record,) = view_reader.readable(reader, (record,))
    layout = _LAYOUTS.get(record.dtype)
    if layout is None:
        return False
    return any(
        _may_hold_nan(block, layout) and _largest(block, layout) > layout.infinity - or_infinity
        for block in view_reader.stream(reader, record.range, holes=False)
    )


def unusable(reader: ByteReader, record: TensorRecord) -> str:
    """Return what no trained table has: ``zeros`` alone, or ``a NaN or an infinity``; else nothing.

    Raises what the reader raises.
    """
    dense_reader, (dense,) = view_reader.readable(reader, (record,))
    if all_zero(dense_reader, dense.range, _LAYOUTS.get(dense.dtype)):
        return "zeros"
    return "a NaN or an infinity" if has_nan(reader, record, or_infinity=True) else ""


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
