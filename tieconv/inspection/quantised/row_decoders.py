"""The dequantiser of each scheme, and blocks of rows of a quantised or a float matrix. Imports numpy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import isfinite

import numpy as np

from tieconv.checkpoint.model_files import ByteReader
from tieconv.checkpoint.quantised_matrix import ErrorFigures, PairRelation, PairState, QuantisedMatrix
from tieconv.checkpoint.value_type import record
from tieconv.checkpoint.weight_file import TensorRecord
from tieconv.inspection.quantised import block_schemes, module_schemes, part_reader
from tieconv.inspection.quantised.block_schemes import BIASES, CODES, COMPUTED, SCALES, ZERO_POINTS
from tieconv.inspection.quantised.part_reader import Array, Decoded, PartReader
from tieconv.inspection.view_reader import read, readable
from tieconv.text import shown

# Dequantise the block types of ggml, MLX and ONNX Runtime.

# Dequantise block types of ggml. Source: `ggml-quants.c`, as gguf 0.19 has it.

_BLOCK_BYTES = {
    "Q4_0": 18, "Q4_1": 20, "Q5_0": 22, "Q5_1": 24, "Q8_0": 34, "IQ4_NL": 18, "MXFP4": 17,
    "Q2_K": 84, "Q3_K": 110, "Q4_K": 144, "Q5_K": 176, "Q6_K": 210, "IQ4_XS": 136,
}  # fmt: skip
"""Bytes of a block."""
IQ4_CODES = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float64)
"""The levels of IQ4_NL and IQ4_XS. Source: `kvalues_iq4nl`."""
_ROUNDOFF = part_reader.ROUNDOFF["F16"]
_ONE_SIDED_EDGE = 1.0
"""Q4_0 and Q5_0 make the largest value an end of the codes; the opposite value is one step outside them."""


def ggml_rows(parts: PartReader, start: int, stop: int) -> Decoded:
    """Return rows of a block type."""
    kind = parts.dtype(CODES)
    raw = parts.raw(CODES, start, stop)
    blocks = raw.reshape(-1, _BLOCK_BYTES[kind])
    decoded = _BLOCK_DECODERS[kind](blocks)
    shape = (stop - start, -1)
    step = np.broadcast_to(decoded.step, decoded.values.shape)
    return Decoded(decoded.values.reshape(shape), step.reshape(shape), decoded.bound.reshape(shape))


def _low_then_high(packed: Array) -> Array:
    """Return the codes of a block: its first half in the low 4 bits, its second in the high."""
    return np.concatenate([packed & 0xF, packed >> 4], axis=1).astype(np.int64)


def _four_or_five_bits(*, fifth: bool, minimum: bool) -> Callable[[Array], Decoded]:
    """Return the decoder of blocks with a scale, with ``minimum`` a minimum, with ``fifth`` 32 high bits, and codes."""

    def decode(blocks: Array) -> Decoded:
        after = 4 if minimum else 2
        codes = _low_then_high(blocks[:, after + 4 if fifth else after :])
        if fifth:
            high = np.ascontiguousarray(blocks[:, after : after + 4])
            codes |= np.unpackbits(high, axis=1, bitorder="little").astype(np.int64) << 4
        scale, ends = half(blocks[:, :2]), (0, 31 if fifth else 15)
        if not minimum:
            middle = 16 if fifth else 8
            return part_reader.uniform(codes, scale, middle, ends=ends, roundoff=_ROUNDOFF, edge=_ONE_SIDED_EDGE)
        smallest, decoded = half(blocks[:, 2:4]), part_reader.uniform(codes, scale, 0, ends=ends, roundoff=_ROUNDOFF)
        return Decoded(decoded.values + smallest, decoded.step, decoded.bound + _ROUNDOFF * np.abs(smallest))

    return decode


def _q8_0(blocks: Array) -> Decoded:
    codes = np.ascontiguousarray(blocks[:, 2:]).view(np.int8).astype(np.int64)
    return part_reader.uniform(codes, half(blocks[:, :2]), 0, ends=(-127, 127), roundoff=_ROUNDOFF)


def _iq4_nl(blocks: Array) -> Decoded:
    return part_reader.from_table(
        _low_then_high(blocks[:, 2:]), IQ4_CODES, part_reader.half_gaps(IQ4_CODES), half(blocks[:, :2]), _ROUNDOFF
    )


def _iq4_xs(blocks: Array) -> Decoded:
    """Return blocks of 256 codes in eight groups, each with a scale of 6 bits."""
    high = np.ascontiguousarray(blocks[:, 2:4]).view("<u2").astype(np.int64)
    low = np.stack([blocks[:, 4:8] & 0xF, blocks[:, 4:8] >> 4], axis=-1).reshape(-1, 8).astype(np.int64)
    scales = (low | (high >> 2 * np.arange(8) & 3) << 4) - 32
    packed = blocks[:, 8:].reshape(-1, 8, 16)
    codes = np.concatenate([packed & 0xF, packed >> 4], axis=-1).astype(np.int64)
    steps = (half(blocks[:, :2]) * scales)[:, :, None]
    return part_reader.from_table(codes, IQ4_CODES, part_reader.half_gaps(IQ4_CODES), steps, _ROUNDOFF)


def _mxfp4(blocks: Array) -> Decoded:
    return part_reader.from_table(
        _low_then_high(blocks[:, 1:]), part_reader.E2M1, part_reader.MX_GAPS, part_reader.POWERS[blocks[:, :1]], 0.0
    )


def half(raw: Array) -> Array:
    """Return pairs of bytes as float16 numbers, in float64."""
    return np.ascontiguousarray(raw).view("<f2").astype(np.float64)


def _shifted(raw: Array, run: int, shifts: tuple[int, ...], mask: int) -> Array:
    """Return the codes of runs of bytes: the bits at the first shift of a whole run precede the others."""
    runs = raw.reshape(raw.shape[0], -1, 1, run).astype(np.int64)
    codes: Array = (runs >> np.array(shifts).reshape(1, 1, -1, 1) & mask).reshape(raw.shape[0], -1)
    return codes


def _grouped(codes: Array, scales: Array, offset: int, largest: int) -> Decoded:
    """Return (codes − offset) · scales, with one scale for each group of the block."""
    groups = codes.reshape(*scales.shape, -1)
    return part_reader.uniform(groups, scales[:, :, None], offset, ends=(0, largest), roundoff=_ROUNDOFF)


def _with_minima(codes: Array, scales: Array, minima: Array, largest: int) -> Decoded:
    decoded = _grouped(codes, scales, 0, largest)
    moved = minima[:, :, None]
    return Decoded(decoded.values - moved, decoded.step, decoded.bound + _ROUNDOFF * np.abs(moved))


def _q2_k(blocks: Array) -> Decoded:
    packed = blocks[:, :16].astype(np.int64)
    codes = _shifted(blocks[:, 16:80], 32, (0, 2, 4, 6), 3)
    return _with_minima(codes, half(blocks[:, 80:82]) * (packed & 0xF), half(blocks[:, 82:84]) * (packed >> 4), 3)


def _q3_k(blocks: Array) -> Decoded:
    high = _shifted(blocks[:, :32], 32, tuple(range(8)), 1)
    codes = _shifted(blocks[:, 32:96], 32, (0, 2, 4, 6), 3) | high << 2
    low = _shifted(blocks[:, 96:104], 8, (0, 4), 0xF)
    scales = (low | _shifted(blocks[:, 104:108], 4, (0, 2, 4, 6), 3) << 4) - 32
    return _grouped(codes, half(blocks[:, 108:110]) * scales, 4, 7)


def _six_bit_pairs(raw: Array) -> tuple[Array, Array]:
    """Return the eight scales and minima of 6 bits that 12 bytes hold."""
    scales, minima, mixed = (part.astype(np.int64) for part in np.split(raw, 3, axis=1))
    later_scales = mixed & 0xF | scales >> 2 & 0x30
    later_minima = mixed >> 4 | minima >> 2 & 0x30
    return (
        np.concatenate([scales & 0x3F, later_scales], axis=1),
        np.concatenate([minima & 0x3F, later_minima], axis=1),
    )


def _q4_k(blocks: Array) -> Decoded:
    scales, minima = _six_bit_pairs(blocks[:, 4:16])
    codes = _shifted(blocks[:, 16:], 32, (0, 4), 0xF)
    return _with_minima(codes, half(blocks[:, :2]) * scales, half(blocks[:, 2:4]) * minima, 15)


def _q5_k(blocks: Array) -> Decoded:
    scales, minima = _six_bit_pairs(blocks[:, 4:16])
    high = _shifted(blocks[:, 16:48], 32, tuple(range(8)), 1)
    codes = _shifted(blocks[:, 48:], 32, (0, 4), 0xF) | high << 4
    return _with_minima(codes, half(blocks[:, :2]) * scales, half(blocks[:, 2:4]) * minima, 31)


def _q6_k(blocks: Array) -> Decoded:
    codes = _shifted(blocks[:, :128], 64, (0, 4), 0xF) | _shifted(blocks[:, 128:192], 32, (0, 2, 4, 6), 3) << 4
    scales = np.ascontiguousarray(blocks[:, 192:208]).view(np.int8).astype(np.float64)
    return _grouped(codes, half(blocks[:, 208:210]) * scales, 32, 63)


# Dequantise the modes of MLX.

_MX8_GAPS = part_reader.half_gaps(part_reader.E4M3, edge=448 * part_reader.POWER_OF_TWO_EDGE)


def affine_rows(parts: PartReader, start: int, stop: int) -> Decoded:
    """Return rows of affine codes: code · scale + bias."""
    codes = part_reader.unpack_words(parts.raw(CODES, start, stop), parts.bits, parts.columns)
    scales, biases = parts.grid(SCALES, start, stop), parts.grid(BIASES, start, stop)
    roundoff = parts.roundoff(SCALES)
    # MLX moves a scale so that one end of the group is exact. The opposite end may be a whole step outside the codes.
    decoded = part_reader.uniform(codes, scales, 0.0, ends=(0, (1 << parts.bits) - 1), roundoff=roundoff, edge=1.0)
    return Decoded(decoded.values + biases, decoded.step, decoded.bound + roundoff * np.abs(biases))


def nvfp4_rows(parts: PartReader, start: int, stop: int) -> Decoded:
    """Return rows of 4-bit floats times an 8-bit float."""
    codes = part_reader.nibbles(parts.raw(CODES, start, stop))
    scales = parts.grid(SCALES, start, stop)
    scales = scales if parts.dtype(SCALES) == "F8_E4M3" else part_reader.E4M3[scales.astype(np.int64)]
    return part_reader.from_table(codes, part_reader.E2M1, part_reader.E2M1_GAPS, scales, 2.0**-4)


def mxfp8_rows(parts: PartReader, start: int, stop: int) -> Decoded:
    """Return rows of 8-bit floats times a power of two."""
    return part_reader.from_table(
        parts.raw(CODES, start, stop), part_reader.E4M3, _MX8_GAPS, part_reader.power_grid(parts, start, stop), 0.0
    )


def block_rows(parts: PartReader, start: int, stop: int) -> Decoded:
    """Return rows of codes: (code − zero point) · scale.

    The default zero point of bytes is the middle of the codes, and that of U4 and I4 is 0.
    """
    columns, block, bits = parts.columns, parts.block[1], parts.bits
    blocks = -(-columns // block)
    groups = np.arange(columns) // block
    codes = _codes(_unsigned(parts, CODES, parts.raw(CODES, start, stop)), bits)[:, :columns]
    # One scale for each block of the rows; the initializer may be flat.
    scales = _floats(parts, SCALES, _of_rows(parts, SCALES, start, stop))
    if scales.shape[1] != blocks:
        raise ValueError("its scales do not fit the codes")
    zero_points: Array | int = 0 if parts.dtype(CODES) == "U4" else 1 << (bits - 1)
    if ZERO_POINTS in parts:
        # One zero point for each block: packed as the codes are, or numbers of the scales' type.
        raw = _of_rows(parts, ZERO_POINTS, start, stop)
        if parts.dtype(ZERO_POINTS) in ("U8", "U4", "I4"):
            points = _codes(_unsigned(parts, ZERO_POINTS, raw), bits)[:, :blocks]
        else:
            points = _floats(parts, ZERO_POINTS, raw)
        if points.shape[1] != blocks:
            raise ValueError("its zero points do not fit the codes")
        zero_points = points[:, groups]
    return part_reader.uniform(
        codes, scales[:, groups], zero_points, ends=(0, (1 << bits) - 1), roundoff=parts.roundoff(SCALES)
    )


def _floats(parts: PartReader, role: str, raw: Array) -> Array:
    return part_reader.to_float64(bytearray(raw.tobytes()), parts.dtype(role)).reshape(len(raw), -1)


def _unsigned(parts: PartReader, role: str, raw: Array) -> Array:
    """Return the bytes, with 8 added to each number of I4, which is signed."""
    return raw ^ 0x88 if parts.dtype(role) == "I4" else raw


def _codes(raw: Array, bits: int) -> Array:
    """Return the codes of bytes, the lowest bits first."""
    shifts = np.arange(0, 8, bits)
    codes: Array = (raw[:, :, None].astype(np.int64) >> shifts & ((1 << bits) - 1)).reshape(len(raw), -1)
    return codes


def _of_rows(parts: PartReader, role: str, start: int, stop: int) -> Array:
    """Return the bytes of rows of a part that may be flat."""
    rows = (parts.matrix.shape or (1, 1))[0]
    width, rest = divmod(parts.nbytes(role), rows)
    if rest:
        raise ValueError("its parts have no whole number of bytes for each row")
    return parts.flat(role, start * width, stop * width).reshape(stop - start, width)


_BLOCK_DECODERS: dict[str, Callable[[Array], Decoded]] = {
    "Q4_0": _four_or_five_bits(fifth=False, minimum=False), "Q4_1": _four_or_five_bits(fifth=False, minimum=True),
    "Q5_0": _four_or_five_bits(fifth=True, minimum=False), "Q5_1": _four_or_five_bits(fifth=True, minimum=True),
    "Q8_0": _q8_0, "IQ4_NL": _iq4_nl, "IQ4_XS": _iq4_xs, "MXFP4": _mxfp4,
    "Q2_K": _q2_k, "Q3_K": _q3_k, "Q4_K": _q4_k, "Q5_K": _q5_k, "Q6_K": _q6_k,
}  # fmt: skip


# Rows of every scheme: which function computes them, and of which parts.

BLOCK_ELEMENTS = 1 << 14
"""Elements of a block of rows. Each array of it takes 128 KiB: from there on, the allocator maps memory each time."""

_ROUNDINGS = 2
"""A quantiser divides by the scale, and it may have moved the value to its type before: each rounds once."""
_NONE: frozenset[str] = frozenset()
_WORDS = frozenset({"I32", "U32"})
_BYTES = frozenset({"I8", "U8", "F8_E4M3", "F8_E5M2"})
_ANY = frozenset({*part_reader.INTEGERS, "F16", "BF16", "F32", "F8_E4M3"})  # bitsandbytes stores the bytes as any type


@record
class Decoder:
    """How a scheme's rows are computed, of which types its codes are, and which parts are read by columns."""

    rows: Callable[[PartReader, int, int], Decoded]
    codes: frozenset[str]
    turned: frozenset[str] = _NONE
    divisor: Callable[[PartReader], float] = lambda parts: 1.0


_DECODERS = {
    module_schemes.PACKED: Decoder(part_reader.packed_rows, _WORDS),
    f"{module_schemes.PLAIN} int-quantized": Decoder(part_reader.byte_rows, _BYTES),
    f"{module_schemes.PLAIN} float-quantized": Decoder(part_reader.byte_rows, _BYTES),
    module_schemes.NVFP4: Decoder(part_reader.nvfp4_rows, _BYTES, divisor=part_reader.nvfp4_divisor),
    module_schemes.FP8: Decoder(part_reader.byte_rows, _BYTES),
    module_schemes.MODELOPT_NVFP4: Decoder(
        part_reader.nvfp4_rows, _BYTES, divisor=lambda parts: 1 / part_reader.nvfp4_divisor(parts)
    ),
    module_schemes.MXFP4: Decoder(part_reader.mxfp4_rows, _BYTES),
    module_schemes.SCHEME: Decoder(part_reader.byte_rows, _BYTES),
    module_schemes.V1: Decoder(part_reader.gptq_rows, _WORDS, part_reader.TURNED),
    module_schemes.V2: Decoder(part_reader.gptq_rows, _WORDS, part_reader.TURNED),
    module_schemes.AWQ: Decoder(part_reader.awq_rows, _WORDS, part_reader.TURNED),
    module_schemes.FOUR_BIT: Decoder(part_reader.four_bit_rows, _ANY),
    module_schemes.EIGHT_BIT: Decoder(
        part_reader.eight_bit_rows, _BYTES, divisor=lambda parts: part_reader.EIGHT_BIT_DIVISOR
    ),
    "MLX affine": Decoder(affine_rows, _WORDS),
    "MLX nvfp4": Decoder(nvfp4_rows, _WORDS),
    "MLX mxfp4": Decoder(part_reader.mxfp4_rows, _WORDS),
    "MLX mxfp8": Decoder(mxfp8_rows, _WORDS),
    block_schemes.SCHEME: Decoder(block_rows, frozenset({"U8", "U4", "I4"})),
    module_schemes.TORCHAO: Decoder(part_reader.byte_rows, _BYTES),
    module_schemes.QUANTO: Decoder(part_reader.byte_rows, _BYTES),
}
_GGML = Decoder(ggml_rows, COMPUTED)


class QuantisedRows:
    """The values of a quantised matrix; ``divisor`` divides them."""

    def __init__(self, matrix: QuantisedMatrix, tensors: Mapping[str, TensorRecord], reader: ByteReader) -> None:
        self._decoder = _GGML if matrix.scheme.startswith("ggml ") else _DECODERS[matrix.scheme]
        self._parts = PartReader(matrix, tensors, reader, self._decoder.turned)
        # Raise `ValueError` for a part of a type that the scheme does not have.
        for part in self._parts.matrix.parts:
            usable = part.dtype in self._decoder.codes if part.role == CODES else part_reader.readable_type(part.dtype)
            if not usable:
                raise ValueError(f"{shown(part.name)} is of type {shown(part.dtype)}, which the scheme does not have")
        self.divisor = self._decoder.divisor(self._parts)
        self.roundoff = self._parts.roundoff(SCALES)

    def block(self, start: int, stop: int) -> Decoded:
        """Return rows ``start`` to ``stop``. Raises `ValueError` if a part has impossible numbers."""
        return self._decoder.rows(self._parts, start, stop)


class FloatRows:
    """The values of a float matrix; the bound is the rounding of the type in which a quantiser computed.

    That is the matrix's type or, with the relative error ``roundoff``, the type of the scales.
    """

    def __init__(self, stored: TensorRecord, reader: ByteReader, roundoff: float = 0.0) -> None:
        self.divisor = 1.0
        self._reader, (self._stored,) = readable(reader, (stored,))
        self._roundoff = _ROUNDINGS * max(part_reader.ROUNDOFF.get(stored.dtype, 0.0), roundoff)

    def block(self, start: int, stop: int) -> Decoded:
        """Return rows ``start`` to ``stop``."""
        width = self._stored.nbytes // self._stored.shape[0]
        raw = read(self._reader, self._stored.range, start * width, (stop - start) * width)
        values = part_reader.to_float64(raw, self._stored.dtype).reshape(stop - start, -1)
        return Decoded(values, np.zeros((1, 1)), self._roundoff * np.abs(values))


Rows = QuantisedRows | FloatRows


def row_blocks(shape: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """Yield (start, stop) of blocks: a multiple of 8 rows, as AWQ packs them, or a few long rows."""
    rows, columns = shape
    height = max(BLOCK_ELEMENTS // columns, 1)
    height -= height % 8 if height > 8 else 0
    for start in range(0, rows, height):
        yield start, min(start + height, rows)


CALIBRATED_STEPS = 0.5
"""Largest rms of the error, in steps of the code, of a calibrated copy.

Rounding to nearest leaves 0.29, and GPTQ 0.31 to 0.40 (`test_calibrated.py`). Unrelated matrices have 1 and more.
"""
CALIBRATED_RMS = 0.6
"""Largest rms of the error, relative to the values, of a calibrated copy. Unrelated matrices have 1.4."""
_ULP = 1 + 2.0**-40
"""Room for the float64 arithmetic of the comparison itself."""


class _Sums:
    def __init__(self) -> None:
        self.largest = self.of_bound = 0.0
        self.squares = self.step_squares = self.value_squares = 0.0
        self.rows_differing = self.elements = 0
        self.nan = False

    def add(self, left: Decoded, right: Decoded, error: Array) -> None:
        """Add a block: the error of each element, and how much rounding allows."""
        bound = (left.bound + right.bound) * _ULP
        step = np.maximum(left.step, right.step)
        self.nan = self.nan or bool(np.isnan(error).any())
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.where(error == 0, 0.0, error / bound)
            steps = np.where(error == 0, 0.0, error / step)
        self.largest = max(self.largest, float(error.max()))
        self.of_bound = max(self.of_bound, float(share.max()))
        self.squares += float(np.square(error).sum())
        self.step_squares += float(np.square(steps).sum())
        self.value_squares += float(np.square(left.values).sum())
        self.rows_differing += int((error != 0).any(axis=1).sum())
        self.elements += error.size

    def figures(self, rows: int) -> ErrorFigures:
        """Return the figures; ``None`` for one that is not finite."""
        relative = (self.squares / self.value_squares) ** 0.5 if self.value_squares else float("nan")
        steps = (self.step_squares / max(self.elements, 1)) ** 0.5
        largest, of_bound, rms_steps, relative_rms = map(self._finite, (self.largest, self.of_bound, steps, relative))
        return ErrorFigures(largest, of_bound, rms_steps, relative_rms, self.rows_differing, rows)

    def _finite(self, number: float) -> float | None:
        return number if isfinite(number) and not self.nan else None


def compare_values(
    embedding: QuantisedMatrix | TensorRecord,
    head: QuantisedMatrix | TensorRecord,
    tensors: Mapping[str, TensorRecord],
    reader: ByteReader,
) -> PairRelation:
    """Return the relation of two matrices of one shape. Raises what the reader raises."""
    shape = (embedding.shape or (0, 0))[0], (embedding.shape or (0, 0))[1]
    copies = not (isinstance(embedding, QuantisedMatrix) and isinstance(head, QuantisedMatrix))
    sums = _Sums()
    try:
        # The rows of both. Those of a float matrix allow for the arithmetic in which it was quantised.
        quantised = [
            QuantisedRows(table, tensors, reader) for table in (embedding, head) if isinstance(table, QuantisedMatrix)
        ]
        roundoff = quantised[0].roundoff
        waiting = iter(quantised)
        left, right = (
            FloatRows(table, reader, roundoff) if isinstance(table, TensorRecord) else next(waiting)
            for table in (embedding, head)
        )
        with np.errstate(all="ignore"):
            for start, stop in row_blocks(shape):
                # Both sides are multiplied by both divisors, so that nothing is rounded by a division.
                first, second = left.block(start, stop), right.block(start, stop)
                crossed = first.values * right.divisor, second.values * left.divisor
                scale = abs(left.divisor * right.divisor)
                error = np.abs(crossed[0] - crossed[1]) / scale
                error[(crossed[0] == crossed[1])] = 0.0
                sums.add(_divided(first, left.divisor), _divided(second, right.divisor), error)
    except ValueError as why:
        return PairRelation(PairState.UNREAD, str(why))
    return _judged(sums, shape[0], copies)


def _divided(decoded: Decoded, divisor: float) -> Decoded:
    size = abs(divisor)
    return Decoded(decoded.values / divisor, decoded.step / size, decoded.bound / size)


def _judged(sums: _Sums, rows: int, copies: bool) -> PairRelation:
    figures = sums.figures(rows)
    if sums.nan:
        return PairRelation(PairState.UNREAD, "a value is not a number", figures=figures)
    if not sums.rows_differing and not copies:
        return PairRelation(PairState.EQUAL_VALUES, figures=figures)
    if copies and figures.of_bound is not None and figures.of_bound <= 1:
        return PairRelation(PairState.COPY, figures=figures)
    if copies and (
        figures.rms_steps is not None
        and figures.relative_rms is not None
        and figures.rms_steps <= CALIBRATED_STEPS
        and figures.relative_rms <= CALIBRATED_RMS
    ):
        return PairRelation(PairState.CALIBRATED_COPY, figures=figures)
    return PairRelation(PairState.DIFFERENT, figures=figures)
