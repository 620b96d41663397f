"""Exact arithmetic on the bits of F16, BF16, F32 and F64 arrays. Imports numpy: import it lazily.

Bits are little-endian unsigned integers of the element's width. Every rounding is a single rounding to nearest, ties to
even.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import isqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from tieconv.checkpoint.model_files import ByteReader
from tieconv.checkpoint.value_type import record
from tieconv.checkpoint.weight_file import TensorRecord
from tieconv.inspection.view_reader import Piece, announce

Array = npt.NDArray[Any]

PIECE = 8 * 1024
"""Elements in one step: their temporaries stay in the second-level cache.

They also stay well below 128 KiB. From that size on, the allocator maps and returns memory each time. The page faults
would then cost more than the arithmetic.
"""

PROBES = 16
"""Positions in a tensor that a sample reads."""


@record
class Format:
    """A float type: its bits as integers, and the number of bits that its mantissa stores."""

    name: str
    width: int
    mantissa: int

    @property
    def bits(self) -> np.dtype[Any]:
        """The unsigned integer type of the bits."""
        return np.dtype(f"<u{self.width}")

    @property
    def sign(self) -> int:
        """The sign bit alone."""
        return 1 << (8 * self.width - 1)

    @property
    def infinity(self) -> int:
        """Magnitude of infinity; larger magnitudes are NaNs."""
        return (self.sign - 1) >> self.mantissa << self.mantissa


F16 = Format("F16", 2, 10)
BF16 = Format("BF16", 2, 7)
F32 = Format("F32", 4, 23)
F64 = Format("F64", 8, 52)
FORMATS = {form.name: form for form in (F16, BF16, F32, F64)}


@record
class Pair:
    """Two stored float tensors of the same shape, read element range by element range."""

    reader: ByteReader
    left: TensorRecord
    right: TensorRecord

    @property
    def formats(self) -> tuple[Format, Format]:
        """The types of the left and the right tensor."""
        return FORMATS[self.left.dtype], FORMATS[self.right.dtype]

    def read(self, start: int, stop: int) -> tuple[Array, Array]:
        """Return the bits of elements ``start`` to ``stop`` (exclusive, row-major) of both tensors."""
        return self._read(self.left, start, stop), self._read(self.right, start, stop)

    def pieces(self) -> Iterator[tuple[Array, Array]]:
        """Yield the whole of both tensors, `PIECE` elements at a time."""
        for start in range(0, self.left.elements, PIECE):
            yield self.read(start, min(start + PIECE, self.left.elements))

    def sample(self) -> tuple[Array, Array]:
        """Return the bits of up to `PROBES` runs of 128 elements at the same positions of both tensors."""
        total, length = self.left.elements, 128
        if total <= PROBES * length:
            return self.read(0, total)
        starts = [(total - length) * index // (PROBES - 1) for index in range(PROBES)]
        announce(self.reader, [piece for start in starts for piece in self._run(start, length)])
        parts = [self.read(start, start + length) for start in starts]
        return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])

    def _run(self, start: int, length: int) -> Iterator[Piece]:
        for tensor in (self.left, self.right):
            width = FORMATS[tensor.dtype].width
            yield tensor.range, start * width, length * width

    def reversed(self) -> Pair:
        """Return the same tensors with the sides exchanged."""
        return Pair(self.reader, self.right, self.left)

    def _read(self, record: TensorRecord, start: int, stop: int) -> Array:
        form = FORMATS[record.dtype]
        array = np.empty(stop - start, form.bits)
        self.reader.read_into(record.range, start * form.width, array.view("u1").data)
        return array


def magnitude(bits: Array, form: Format) -> Array:
    """Return the bits without the sign: integers in the order of the absolute values."""
    numbers: Array = bits & form.bits.type(form.sign - 1)
    return numbers


def is_nan(bits: Array, form: Format) -> Array:
    """Return which elements are NaN."""
    return magnitude(bits, form) > form.infinity


def is_finite(bits: Array, form: Format) -> Array:
    """Return which elements are neither infinite nor NaN."""
    return magnitude(bits, form) < form.infinity


def monotone(bits: Array, form: Format) -> Array:
    """Return signed integers in the order of the values, one step for each ulp; -0 and +0 are 0."""
    shift = 8 * form.width - 1
    signed = bits.view(f"<i{form.width}")
    negative = signed >> shift
    steps: Array = (signed ^ (negative & (form.sign - 1))) - negative
    return steps


def ulp_distance(a: Array, b: Array, form: Format) -> Array:
    """Return the distance of two arrays in representable values, unsigned; meaningless if either is NaN."""
    left, right = monotone(a, form), monotone(b, form)
    # The difference may exceed the signed range; as an unsigned number it never does.
    return (np.maximum(left, right) - np.minimum(left, right)).view(form.bits)


def decode(bits: Array, form: Format) -> Array:
    """Return the values as float32 (exact for the narrower types), or as float64 for F64."""
    if form.name == "BF16":
        return np.left_shift(bits, 16, dtype="<u4").view("<f4")
    values = bits.view(f"<f{form.width}")
    with np.errstate(invalid="ignore"):
        return values.astype("<f4") if form.name == "F16" else values


def encode(values: Array, form: Format) -> Array:
    """Return the bits of float64 values rounded once to ``form``."""
    if form.name == "F64":
        return values.view("<u8")
    with np.errstate(all="ignore"):
        if form.name == "F32":
            return values.astype("<f4").view("<u4")
        # An inexact float64 becomes the float32 neighbour whose last mantissa bit is set. Rounding that to a type at
        # least two bits shorter equals rounding the value itself. Rounding to nearest twice would not.
        nearest = values.astype("<f4")
        back = nearest.astype("<f8")
        bits = nearest.view("<u4").copy()
        bits -= np.abs(back) > np.abs(values)
        bits |= (back != values) & ~np.isnan(values)
        return _narrow(bits.view("<f4"), form)


def convert(bits: Array, source: Format, target: Format) -> Array:
    """Return the bits of the same values in ``target``, rounded once if it is the coarser type."""
    if source == target:
        return bits
    values = decode(bits, source)
    with np.errstate(all="ignore"):
        if source.name == "F64" or target.name == "F64":
            return encode(values.astype("<f8", copy=False), target)
        return values.view("<u4") if target.name == "F32" else _narrow(values, target)


def _narrow(values: Array, form: Format) -> Array:
    """Return the bits of float32 values rounded to a type of 16 bits."""
    if form.name == "F16":
        return values.astype("<f2").view("<u2")
    bits = values.view("<u4")
    rounded = ((bits + np.uint32(0x7FFF) + ((bits >> 16) & np.uint32(1))) >> 16).astype("<u2")
    nan = is_nan(bits, F32)
    if nan.any():
        rounded[nan] = (bits[nan] >> 16) | 0x40
    return rounded


def cast_direction(pair: Pair) -> tuple[Pair, bool, bool] | None:
    """Return the pair as (exact side, rounded side), whether rounding lost nothing, and whether it holds a NaN.

    Returns ``None`` if neither side is the other one rounded. Between F16 and BF16 either side may be the exact one;
    otherwise it is the wider. A NaN may become any NaN, but loses something unless converting back restores its bits.
    Proved over every element.
    """
    for candidate in _directions(pair):
        known = _proved(candidate)
        if known is not None:
            return candidate, *known
    return None


def _directions(pair: Pair) -> list[Pair]:
    left, right = (FORMATS[record.dtype].width for record in (pair.left, pair.right))
    if left == right:
        return [pair, pair.reversed()]
    return [pair] if left > right else [pair.reversed()]


def _proved(pair: Pair) -> tuple[bool, bool] | None:
    """Return whether converting back is lossless, and whether a NaN is stored.

    Returns ``None`` if the right side is not the left one rounded.
    """
    exact, narrow = pair.formats
    if not _rounds_to(*pair.sample(), exact, narrow):
        return None
    lossless, nan = True, False
    for left, right in pair.pieces():
        if not _rounds_to(left, right, exact, narrow):
            return None
        lossless = lossless and bool((convert(right, narrow, exact) == left).all())
        nan = nan or bool(is_nan(right, narrow).any())
    return lossless, nan


def _rounds_to(left: Array, right: Array, exact: Format, narrow: Format) -> bool:
    same = convert(left, exact, narrow) == right
    if same.all():
        return True
    return bool((is_nan(left, exact) & is_nan(right, narrow))[~same].all())


TILE_BYTES = 4 * 1024 * 1024
"""Bytes of each matrix in memory at a time."""

# A strip as wide as a cache line compares four times as fast as a square tile of that size.
_CACHE_LINE = 64
_STRIP_BYTES = 64 * 1024


def transpose_equal(reader: ByteReader, a: TensorRecord, b: TensorRecord, width: int) -> bool:
    """Return whether ``b[j, i]`` has the bits of ``a[i, j]`` for every element of ``width`` bytes."""
    rows, columns = a.shape
    height, breadth = _tile(rows, columns, TILE_BYTES // width)
    for row, column in product(range(0, rows, height), range(0, columns, breadth)):
        tall, wide = min(height, rows - row), min(breadth, columns - column)
        left = _read_tile(reader, a, (row, column), (tall, wide), width)
        right = _read_tile(reader, b, (column, row), (wide, tall), width)
        elements = _STRIP_BYTES // left.itemsize
        # Taller if there are few columns, wider if there are few rows: calls for short strips would cost the most.
        strip_tall = min(left.shape[0], elements // min(left.shape[1], _CACHE_LINE // left.itemsize))
        strip_wide = elements // strip_tall
        if not all(
            np.array_equal(
                left[i : i + strip_tall, j : j + strip_wide], right[j : j + strip_wide, i : i + strip_tall].T
            )
            for i, j in product(range(0, left.shape[0], strip_tall), range(0, left.shape[1], strip_wide))
        ):
            return False
    return True


def _tile(rows: int, columns: int, elements: int) -> tuple[int, int]:
    """Return (rows, columns) of the tiles of ``a`` that need the fewest reads per element.

    A tile that spans a whole matrix row is one read. Any other tile is one read for each of its rows.
    """
    side = isqrt(elements)
    breadths = {min(columns, elements), min(columns, side), min(columns, max(1, elements // rows))}
    tiles = [(min(rows, elements // breadth), breadth) for breadth in breadths]

    def reads_per_element(tile: tuple[int, int]) -> float:
        tall, wide = tile
        reads = (1 if wide == columns else tall) + (1 if tall == rows else wide)
        return reads / (tall * wide)

    return min(tiles, key=reads_per_element)


def _read_tile(
    reader: ByteReader, record: TensorRecord, corner: tuple[int, int], shape: tuple[int, int], width: int
) -> Array:
    stride = record.shape[1]
    tile: Array = np.empty(shape, np.dtype(f"<u{width}"))
    view = tile.reshape(-1).view("u1").data
    if shape[1] == stride:
        reader.read_into(record.range, corner[0] * stride * width, view)
        return tile
    length = shape[1] * width
    for row in range(shape[0]):
        offset = ((corner[0] + row) * stride + corner[1]) * width
        reader.read_into(record.range, offset, view[row * length : (row + 1) * length])
    return tile
