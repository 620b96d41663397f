"""Read rows of the parts of a quantised matrix. Imports numpy: import it lazily."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tieconv.checkpoint.model_files import ByteReader
from tieconv.checkpoint.quantised_matrix import QuantisedMatrix
from tieconv.checkpoint.value_type import record
from tieconv.checkpoint.weight_file import TensorRecord
from tieconv.inspection.quantised.block_schemes import (
    CODE_MAP,
    CODES,
    GLOBAL_SCALE,
    GROUP_INDEX,
    NESTED_MAP,
    NESTED_SCALES,
    SCALES,
    STATE,
    ZERO_POINTS,
    words,
)
from tieconv.inspection.quantised.module_schemes import V1, quant_state
from tieconv.inspection.view_reader import read, readable, turned

Array = npt.NDArray[Any]


@record
class Decoded:
    """Rows of a matrix in float64: ``values``, the ``step`` of each code, and the ``bound`` of rounding.

    A float that is rounded to nearest is at most ``bound`` from the value of its code. All are divided by the
    matrix's `divisor`, if it has one.
    """

    values: Array
    step: Array
    bound: Array


class PartReader:
    """The parts of one matrix, by purpose. ``by_columns`` are read by columns: their rows are tokens."""

    def __init__(
        self,
        matrix: QuantisedMatrix,
        tensors: Mapping[str, TensorRecord],
        reader: ByteReader,
        by_columns: frozenset[str] = frozenset(),
    ) -> None:
        self.matrix = matrix
        self.columns = matrix.shape[1] if matrix.shape else 0
        self.block = matrix.block or (1, self.columns)
        self.bits = matrix.bits or 4
        self._records: dict[str, tuple[ByteReader, TensorRecord]] = {}
        self._whole: dict[str, Array] = {}
        for part in matrix.parts:
            stored = tensors[part.name]
            dense_reader, (dense,) = readable(reader, (turned(stored) if part.role in by_columns else stored,))
            self._records.setdefault(part.role, (dense_reader, dense))

    def __contains__(self, role: str) -> bool:
        return role in self._records

    def dtype(self, role: str) -> str:
        """Return the type of a part."""
        return self._records[role][1].dtype

    def shape(self, role: str) -> tuple[int, ...]:
        """Return the shape of a part, turned if it is read so."""
        return self._records[role][1].shape

    def nbytes(self, role: str) -> int:
        """Return the bytes of a part."""
        return self._records[role][1].nbytes

    def roundoff(self, role: str) -> float:
        """Return the largest relative error of a rounding to the part's type."""
        return ROUNDOFF.get(self.dtype(role), 0.0) if role in self else 0.0

    def raw(self, role: str, start: int, stop: int) -> Array:
        """Return the bytes of rows ``start`` to ``stop``, one row of bytes for each."""
        reader, stored = self._records[role]
        width = stored.nbytes // stored.shape[0]
        buffer = read(reader, stored.range, start * width, (stop - start) * width)
        return np.frombuffer(buffer, "u1").reshape(stop - start, width)

    def flat(self, role: str, start: int, stop: int) -> Array:
        """Return bytes ``start`` to ``stop`` of a part."""
        reader, stored = self._records[role]
        return np.frombuffer(read(reader, stored.range, start, stop - start), "u1")

    def rows(self, role: str, start: int, stop: int) -> Array:
        """Return the numbers of rows ``start`` to ``stop`` as float64, in the part's shape."""
        raw = self.raw(role, start, stop)
        numbers = to_float64(bytearray(raw.tobytes()), self.dtype(role))
        return numbers.reshape(stop - start, *self.shape(role)[1:])

    def codes_along_tokens(self, role: str, first: int, end: int) -> Array:
        """Return codes ``first`` to ``end`` of a part whose words each hold tokens of a column, [tokens, columns].

        32 codes fill ``bits`` words, so whole runs of 32 are read.
        """
        run, bits = first // 32, self.bits
        end_word = min(-(-end // 32) * bits, self.shape(role)[0])
        packed = self.raw(role, run * bits, end_word)
        words = np.ascontiguousarray(packed.reshape(len(packed), -1, 4).transpose(1, 0, 2))
        codes = unpack_words(words.reshape(len(words), -1), bits, end - run * 32)
        return codes[:, first - run * 32 :].T

    def whole(self, role: str) -> Array:
        """Return all numbers of a small part, flat, as float64."""
        if role not in self._whole:
            reader, stored = self._records[role]
            self._whole[role] = to_float64(read(reader, stored.range, 0, stored.nbytes), stored.dtype)
        return self._whole[role]

    def grid(self, role: str, start: int, stop: int, groups: Array | None = None) -> Array:
        """Return the numbers of a part that has one number for a block, repeated for each element of the rows.

        ``groups`` is the group of each column, if the columns are not in order. The result broadcasts to (rows, H).
        """
        if self.shape(role) in ((), (1,), (1, 1)) and self.matrix.shape != (1, 1):
            return self.whole(role).reshape(1, 1)
        height, width = self.block
        first, end = start // height, -(-stop // height)
        numbers = self.rows(role, first, end).reshape(end - first, -1)
        numbers = numbers[np.arange(start, stop) // height - first]
        if numbers.shape[1] == 1:
            return numbers
        return numbers[:, np.arange(self.columns) // width if groups is None else groups]


def uniform(
    codes: Array,
    scales: Array,
    zero_points: Array | float,
    *,
    ends: tuple[int, int],
    roundoff: float,
    edge: float = 0.5,
) -> Decoded:
    """Return (codes − zero points) · scales. The ``ends`` are the smallest and the largest code.

    A float rounds to the nearest code, so it is at most half a step away. It may be ``edge`` steps from an end, where a
    quantiser clips. The scale was rounded to its type, so the products move by ``roundoff``.
    """
    steps = codes - zero_points
    values, size = steps * scales, np.abs(scales)
    reach = np.where((codes <= ends[0]) | (codes >= ends[1]), edge, 0.5)
    return Decoded(values, np.broadcast_to(size, values.shape), reach * size + roundoff * np.abs(values))


def from_table(codes: Array, table: Array, gaps: Array, scales: Array, roundoff: float) -> Decoded:
    """Return the values of codes that a table gives, times the scales; ``gaps`` are those of `half_gaps`."""
    values, size = table[codes] * scales, np.abs(scales)
    reach = gaps[codes] * size
    return Decoded(values, 2 * reach, reach + roundoff * np.abs(values))


# Convert stored numbers to float64, exactly.

INTEGERS = {
    "I8": "<i1", "U8": "<u1", "I16": "<i2", "U16": "<u2", "I32": "<i4", "U32": "<u4", "I64": "<i8", "U64": "<u8",
}  # fmt: skip
_FLOATS = {"F16": "<f2", "F32": "<f4", "F64": "<f8"}
ROUNDOFF = {"F16": 2.0**-11, "BF16": 2.0**-8, "F32": 2.0**-24, "F64": 2.0**-53, "F8_E4M3": 2.0**-4}
"""The largest relative error of a rounding to the type; 0 for a type that is not here."""


def _float8(exponent_bits: int, bias: int, finite: int) -> Array:
    """Return the value of each byte of an 8-bit float; NaN above the magnitude ``finite``."""
    codes = np.arange(256)
    mantissa_bits = 7 - exponent_bits
    magnitude = codes & 0x7F
    exponent, mantissa = magnitude >> mantissa_bits, magnitude & ((1 << mantissa_bits) - 1)
    fraction = mantissa / (1 << mantissa_bits) + (exponent > 0)
    values = np.ldexp(fraction, np.maximum(exponent, 1) - bias)
    values[magnitude > finite] = np.nan
    signed: Array = np.where(codes & 0x80, -values, values)
    return signed


E4M3 = _float8(4, 7, 0x7E)
"""The value of each byte of F8_E4M3."""
E5M2 = _float8(5, 15, 0x7B)
"""The value of each byte of F8_E5M2; NaN also for the infinities, which no code of a matrix is."""
E2M1 = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0])
"""The value of each 4-bit float."""
POWERS = np.append(np.exp2(np.arange(255) - 127.0), np.nan)
"""The value of each byte of an E8M0 scale: a power of two."""
TABLES = {"F8_E4M3": E4M3, "F8_E5M2": E5M2, "F8_E8M0": POWERS}


def readable_type(dtype: str) -> bool:
    """Return whether `to_float64` reads the type."""
    return dtype in INTEGERS or dtype in _FLOATS or dtype in TABLES or dtype == "BF16"


def to_float64(raw: bytearray, dtype: str) -> Array:
    """Return the numbers of a flat buffer as float64. Raises `KeyError` for an unknown type."""
    if dtype in TABLES:
        return np.asarray(TABLES[dtype][np.frombuffer(raw, "u1")])
    if dtype == "BF16":
        return (np.frombuffer(raw, "<u2").astype("<u4") << 16).view("<f4").astype(np.float64)
    return np.frombuffer(raw, {**INTEGERS, **_FLOATS}[dtype]).astype(np.float64)


def half_gaps(table: Array, edge: float | None = None) -> Array:
    """Return for each code the largest distance of a value that rounds to it.

    That is half the larger gap to a neighbour, and ``edge`` for the codes of the largest magnitude.
    """
    levels = np.unique(np.abs(table[np.isfinite(table)])) if table.min() < 0 else np.unique(table)
    both = np.unique(table[np.isfinite(table)])
    gaps = np.diff(both)
    reach = np.maximum(np.append(gaps, 0.0), np.insert(gaps, 0, 0.0)) / 2
    if edge is not None:
        reach[np.abs(both) == levels[-1]] = edge
    result = np.full(table.shape, np.nan)
    known = np.isfinite(table)
    result[known] = reach[np.searchsorted(both, table[known])]
    return result


# Unpack codes of 1 to 8 bits from rows of bytes.
def unpack_words(raw: Array, bits: int, count: int, *, gaps: bool = False) -> Array:
    """Return ``count`` codes of each row of little-endian 32-bit words, the lowest bits first, as int64.

    ``raw`` is [rows, bytes]. With ``gaps`` no code crosses a word; else the codes fill all bits.
    """
    packed = np.ascontiguousarray(raw).view("<u4").astype(np.uint64)
    index = np.arange(count)
    if gaps:
        per_word = 32 // bits
        word, shift = index // per_word, index % per_word * bits
        joined = packed[:, word]
    else:
        word, shift = index * bits // 32, index * bits % 32
        following = np.minimum(word + 1, packed.shape[1] - 1)
        joined = packed[:, word] | packed[:, following] << np.uint64(32)
    return (joined >> shift.astype(np.uint64) & np.uint64((1 << bits) - 1)).astype(np.int64)


def nibbles(raw: Array, *, high_first: bool = False) -> Array:
    """Return two codes of 4 bits for each byte along the last axis."""
    low, high = raw & 0xF, raw >> 4
    pair = (high, low) if high_first else (low, high)
    return np.stack(pair, axis=-1).reshape(*raw.shape[:-1], -1)


# Dequantise the modules of a torch model.

# Dequantise GPTQ and AWQ.

TURNED = frozenset({CODES, SCALES, ZERO_POINTS})
"""Parts whose columns are tokens, or words of tokens."""
_AWQ_ORDER = np.array([0, 2, 4, 6, 1, 3, 5, 7])
"""The column that each 4 bits of a word hold, lowest first."""


class AmbiguousZeroError(ValueError):
    """A zero point of GPTQ v1 that loaders read as 0 or as one more than the largest code."""


def gptq_rows(parts: PartReader, start: int, stop: int) -> Decoded:
    """Return rows of GPTQ codes: (code − zero point) · scale; v1 stores the zero point minus one."""
    codes = unpack_words(parts.raw(CODES, start, stop), parts.bits, parts.columns)
    groups = gptq_groups(parts)
    scales = parts.rows(SCALES, start, stop)[:, groups]
    zero_points = _zero_points(parts, start, stop)[:, groups]
    return uniform(codes, scales, zero_points, ends=(0, (1 << parts.bits) - 1), roundoff=parts.roundoff(SCALES))


def gptq_groups(parts: PartReader) -> Array:
    """Return the group of each column. Raises `ValueError` for a group that has no scale."""
    if GROUP_INDEX not in parts:
        return np.arange(parts.columns) // parts.block[1]
    groups = parts.whole(GROUP_INDEX).astype(np.int64)
    if groups.min() < 0 or groups.max() >= parts.shape(SCALES)[1]:
        raise ValueError("its g_idx has a group without scales")
    return groups


def _zero_points(parts: PartReader, start: int, stop: int) -> Array:
    """Return the zero points of tokens ``start`` to ``stop``, one for each group."""
    stored = parts.codes_along_tokens(ZERO_POINTS, start, stop)
    if parts.matrix.scheme != V1:
        return stored
    if (stored == (1 << parts.bits) - 1).any():
        raise AmbiguousZeroError("a zero point of GPTQ v1 overflows, and loaders disagree about its value")
    return stored + 1


def awq_rows(parts: PartReader, start: int, stop: int) -> Decoded:
    """Return rows of AWQ codes: (code − zero point) · scale."""
    groups = np.arange(parts.columns) // parts.block[1]
    scales = parts.rows(SCALES, start, stop)[:, groups]
    zero_points = _awq_codes(parts, ZERO_POINTS, start, stop)[:, groups]
    codes = _awq_codes(parts, CODES, start, stop)
    return uniform(codes, scales, zero_points, ends=(0, 15), roundoff=parts.roundoff(SCALES))


def _awq_codes(parts: PartReader, role: str, start: int, stop: int) -> Array:
    """Return the codes of tokens ``start`` to ``stop``: a word holds eight tokens of a column."""
    first, end = start // 8, -(-stop // 8)
    packed = np.ascontiguousarray(parts.raw(role, first, end)).view("<u4")
    codes = np.empty((end - first, 8, packed.shape[1]), np.int64)
    for position, column in enumerate(_AWQ_ORDER):
        codes[:, column] = packed >> np.uint32(4 * position) & np.uint32(0xF)
    return codes.reshape(-1, packed.shape[1])[start - first * 8 : stop - first * 8]


# Dequantise the formats of compressed-tensors.

E2M1_GAPS = half_gaps(E2M1)
POWER_OF_TWO_EDGE = 2**0.5 - 1
"""A scale that is rounded to a power of two may be this share too small. The largest code is then clipped."""
MX_GAPS = half_gaps(E2M1, edge=6 * POWER_OF_TWO_EDGE)


def packed_rows(parts: PartReader, start: int, stop: int) -> Decoded:
    """Return rows of pack-quantized codes: (code − zero point) · scale."""
    raw = parts.raw(CODES, start, stop)
    gaps = raw.shape[1] // 4 != words(parts.columns, parts.bits)
    codes = unpack_words(raw, parts.bits, parts.columns, gaps=gaps)
    half = 1 << (parts.bits - 1)
    groups = _groups(parts)
    zero_points = _packed_zero_points(parts, start, stop, groups, half)
    scales = parts.grid(SCALES, start, stop, groups)
    return uniform(codes, scales, zero_points, ends=(0, 2 * half - 1), roundoff=parts.roundoff(SCALES))


def _groups(parts: PartReader) -> Array | None:
    """Return the group of each column, if the columns are not in order. Raises `ValueError` for an impossible one."""
    if GROUP_INDEX not in parts:
        return None
    fits = parts.shape(GROUP_INDEX) == (parts.columns,)
    groups = parts.whole(GROUP_INDEX).astype(np.int64) if fits else np.array([-1])
    if groups.min() < 0 or groups.max() >= parts.shape(SCALES)[-1]:
        raise ValueError("its weight_g_idx does not fit the scales")
    return groups


def _packed_zero_points(parts: PartReader, start: int, stop: int, groups: Array | None, half: int) -> Array | int:
    """Return the zero points as unsigned codes: those in 32-bit words are packed along the tokens."""
    if ZERO_POINTS not in parts:
        return half
    if parts.dtype(ZERO_POINTS) != "I32":
        return parts.grid(ZERO_POINTS, start, stop, groups) + half
    height, width = parts.block
    first, end = start // height, -(-stop // height)
    codes = parts.codes_along_tokens(ZERO_POINTS, first, end)[np.arange(start, stop) // height - first]
    if codes.shape[1] == 1:
        return codes
    return codes[:, np.arange(parts.columns) // width if groups is None else groups]


def byte_rows(parts: PartReader, start: int, stop: int) -> Decoded:
    """Return rows of codes that are whole bytes: (code − zero point) · scale."""
    scales, roundoff = parts.grid(SCALES, start, stop), parts.roundoff(SCALES)
    dtype = parts.dtype(CODES)
    if dtype in TABLES:
        codes = parts.raw(CODES, start, stop)
        return from_table(codes, TABLES[dtype], half_gaps(TABLES[dtype]), scales, roundoff)
    signed = parts.rows(CODES, start, stop)
    zero_points: Array | float = parts.grid(ZERO_POINTS, start, stop) if ZERO_POINTS in parts else 0.0
    half = 1 << (parts.bits - 1)
    return uniform(signed, scales, zero_points, ends=(-half, half - 1), roundoff=roundoff)


def nvfp4_rows(parts: PartReader, start: int, stop: int) -> Decoded:
    """Return rows of 4-bit floats times their scale; the divisor is the global scale."""
    codes = nibbles(parts.raw(CODES, start, stop))
    return from_table(codes, E2M1, E2M1_GAPS, parts.grid(SCALES, start, stop), parts.roundoff(SCALES))


def nvfp4_divisor(parts: PartReader) -> float:
    """Return the global scale. Raises `ValueError` if it is not one number."""
    number = float(parts.whole(GLOBAL_SCALE)[0]) if parts.shape(GLOBAL_SCALE) in ((), (1,)) else 0.0
    if not number:
        raise ValueError("its global scale is not one number other than 0")
    return number


def mxfp4_rows(parts: PartReader, start: int, stop: int) -> Decoded:
    """Return rows of 4-bit floats times a power of two."""
    codes = nibbles(parts.raw(CODES, start, stop))
    return from_table(codes, E2M1, MX_GAPS, power_grid(parts, start, stop), 0.0)


def power_grid(parts: PartReader, start: int, stop: int) -> Array:
    """Return the E8M0 scales of rows, repeated for each element."""
    stored = parts.grid(SCALES, start, stop)
    return stored if parts.dtype(SCALES) == "F8_E8M0" else POWERS[stored.astype(np.int64)]


# Dequantise bitsandbytes, 4 and 8 bit.

EIGHT_BIT_DIVISOR = 127.0


def four_bit_rows(parts: PartReader, start: int, stop: int) -> Decoded:
    """Return rows of 4-bit codes: map[code] · absmax. Blocks run over the rows' ends."""
    block = parts.block[1]
    first, end = start * parts.columns, stop * parts.columns
    packed = parts.flat(CODES, first // 2, -(-end // 2))
    codes = nibbles(packed, high_first=True)[first % 2 :][: end - first]
    table = parts.whole(CODE_MAP)
    scales, error = _absmax(parts, first // block, -(-end // block))
    index = np.arange(first, end) // block - first // block
    decoded = from_table(codes, table, half_gaps(table), scales[index], parts.roundoff(NESTED_SCALES))
    bound = decoded.bound + np.abs(table[codes]) * error[index]
    shape = (stop - start, parts.columns)
    return Decoded(decoded.values.reshape(shape), decoded.step.reshape(shape), bound.reshape(shape))


def _absmax(parts: PartReader, first: int, end: int) -> tuple[Array, Array]:
    """Return the scales of blocks, and how far the rounding of nested scales may have moved them.

    Nested scales are computed in float32, as bitsandbytes does.
    """
    if parts.dtype(SCALES) != "U8":
        scales = parts.rows(SCALES, first, end)
        return scales, np.zeros_like(scales)
    state = quant_state(parts.flat(STATE, 0, parts.shape(STATE)[0]).tobytes())
    if state is None or not state.nested_block:
        raise ValueError("its quant_state lacks nested_blocksize")
    codes = parts.flat(SCALES, first, end)
    table, maxima = parts.whole(NESTED_MAP), parts.whole(NESTED_SCALES)
    maximum = maxima[np.arange(first, end) // state.nested_block]
    scales = (table.astype("f4")[codes] * maximum.astype("f4") + np.float32(state.nested_offset)).astype(np.float64)
    return scales, half_gaps(table)[codes] * maximum + 2.0**-22 * np.abs(scales)


def eight_bit_rows(parts: PartReader, start: int, stop: int) -> Decoded:
    """Return rows of 8-bit codes: code · SCB; the divisor is 127."""
    codes = parts.rows(CODES, start, stop)
    return uniform(codes, parts.grid(SCALES, start, stop), 0.0, ends=(-127, 127), roundoff=parts.roundoff(SCALES))
