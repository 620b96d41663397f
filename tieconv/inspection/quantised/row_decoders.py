"""The dequantiser of each scheme, and blocks of rows of a quantised or a float matrix. Imports numpy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import isfinite
from typing import Protocol, TypeGuard

import numpy as np

from tieconv.checkpoint.model_files import ByteReader
from tieconv.checkpoint.quantised_matrix import ErrorFigures, PairRelation, PairState, QuantisedMatrix
from tieconv.checkpoint.value_type import record
from tieconv.checkpoint.weight_file import TensorRecord
from tieconv.inspection.quantised import block_schemes, block_values, module_schemes, module_values
from tieconv.inspection.quantised.block_schemes import COMPUTED
from tieconv.inspection.quantised.part_reader import (
    INTEGERS,
    ROUNDOFF,
    Array,
    Decoded,
    PartReader,
    readable_type,
    to_float64,
)
from tieconv.inspection.quantised.scheme_interface import CODES, SCALES
from tieconv.inspection.view_reader import read, readable
from tieconv.text import shown

BLOCK_ELEMENTS = 1 << 14
"""Elements of a block of rows. Each array of it takes 128 KiB: from there on, the allocator maps memory each time."""

_ROUNDINGS = 2
"""A quantiser divides by the scale, and it may have moved the value to its type before: each rounds once."""
_NONE: frozenset[str] = frozenset()
_WORDS = frozenset({"I32", "U32"})
_BYTES = frozenset({"I8", "U8", "F8_E4M3", "F8_E5M2"})
_ANY = frozenset({*INTEGERS, "F16", "BF16", "F32", "F8_E4M3"})  # bitsandbytes stores the bytes as any type


class Rows(Protocol):
    """A matrix of float64 values, read by rows."""

    divisor: float

    def block(self, start: int, stop: int) -> Decoded:
        """Return rows ``start`` to ``stop``."""
        ...


@record
class Decoder:
    """How a scheme's rows are computed, of which types its codes are, and which parts are read by columns."""

    rows: Callable[[PartReader, int, int], Decoded]
    codes: frozenset[str]
    turned: frozenset[str] = _NONE
    divisor: Callable[[PartReader], float] = lambda parts: 1.0


_DECODERS = {
    module_schemes.PACKED: Decoder(module_values.packed_rows, _WORDS),
    f"{module_schemes.PLAIN} int-quantized": Decoder(module_values.byte_rows, _BYTES),
    f"{module_schemes.PLAIN} float-quantized": Decoder(module_values.byte_rows, _BYTES),
    module_schemes.NVFP4: Decoder(module_values.nvfp4_rows, _BYTES, divisor=module_values.nvfp4_divisor),
    module_schemes.FP8: Decoder(module_values.byte_rows, _BYTES),
    module_schemes.MODELOPT_NVFP4: Decoder(
        module_values.nvfp4_rows,
        _BYTES,
        divisor=lambda parts: 1 / module_values.nvfp4_divisor(parts),
    ),
    module_schemes.MXFP4: Decoder(module_values.mxfp4_rows, _BYTES),
    module_schemes.SCHEME: Decoder(module_values.byte_rows, _BYTES),
    module_schemes.V1: Decoder(module_values.gptq_rows, _WORDS, module_values.TURNED),
    module_schemes.V2: Decoder(module_values.gptq_rows, _WORDS, module_values.TURNED),
    module_schemes.AWQ: Decoder(module_values.awq_rows, _WORDS, module_values.TURNED),
    module_schemes.FOUR_BIT: Decoder(module_values.four_bit_rows, _ANY),
    module_schemes.EIGHT_BIT: Decoder(
        module_values.eight_bit_rows, _BYTES, divisor=lambda parts: module_values.EIGHT_BIT_DIVISOR
    ),
    "MLX affine": Decoder(block_values.affine_rows, _WORDS),
    "MLX nvfp4": Decoder(block_values.nvfp4_rows, _WORDS),
    "MLX mxfp4": Decoder(block_values.mxfp4_rows, _WORDS),
    "MLX mxfp8": Decoder(block_values.mxfp8_rows, _WORDS),
    block_schemes.SCHEME: Decoder(block_values.block_rows, frozenset({"U8", "U4", "I4"})),
    module_schemes.TORCHAO: Decoder(module_values.subclass_rows, _BYTES),
    module_schemes.QUANTO: Decoder(module_values.subclass_rows, _BYTES),
}
_GGML = Decoder(block_values.ggml_rows, COMPUTED)


class QuantisedRows:
    """The values of a quantised matrix; ``divisor`` divides them."""

    def __init__(self, matrix: QuantisedMatrix, tensors: Mapping[str, TensorRecord], reader: ByteReader) -> None:
        self._decoder = _GGML if matrix.scheme.startswith("ggml ") else _DECODERS[matrix.scheme]
        self._parts = PartReader(matrix, tensors, reader, self._decoder.turned)
        self._check_types()
        self.divisor = self._decoder.divisor(self._parts)
        self.roundoff = self._parts.roundoff(SCALES)

    def _check_types(self) -> None:
        """Raise `ValueError` for a part of a type that the scheme does not have."""
        for part in self._parts.matrix.parts:
            usable = part.dtype in self._decoder.codes if part.role == CODES else readable_type(part.dtype)
            if not usable:
                raise ValueError(f"{shown(part.name)} is of type {shown(part.dtype)}, which the scheme does not have")

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
        self._roundoff = _ROUNDINGS * max(ROUNDOFF.get(stored.dtype, 0.0), roundoff)

    def block(self, start: int, stop: int) -> Decoded:
        """Return rows ``start`` to ``stop``."""
        width = self._stored.nbytes // self._stored.shape[0]
        raw = read(self._reader, self._stored.range, start * width, (stop - start) * width)
        values = to_float64(raw, self._stored.dtype).reshape(stop - start, -1)
        return Decoded(values, np.zeros((1, 1)), self._roundoff * np.abs(values))


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
    """The figures of the blocks that were compared."""

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
        left, right = _sides(embedding, head, tensors, reader)
        with np.errstate(all="ignore"):
            for start, stop in row_blocks(shape):
                _add(sums, left, right, start, stop, copies)
    except ValueError as why:
        return PairRelation(PairState.UNREAD, str(why))
    return _judged(sums, shape[0], copies)


def _sides(
    embedding: QuantisedMatrix | TensorRecord,
    head: QuantisedMatrix | TensorRecord,
    tensors: Mapping[str, TensorRecord],
    reader: ByteReader,
) -> tuple[Rows, Rows]:
    """Return the rows of both. Those of a float matrix allow for the arithmetic in which it was quantised."""
    quantised = [QuantisedRows(table, tensors, reader) for table in (embedding, head) if _is_quantised(table)]
    roundoff = quantised[0].roundoff
    waiting = iter(quantised)
    left, right = (
        FloatRows(table, reader, roundoff) if isinstance(table, TensorRecord) else next(waiting)
        for table in (embedding, head)
    )
    return left, right


def _is_quantised(table: QuantisedMatrix | TensorRecord) -> TypeGuard[QuantisedMatrix]:
    return isinstance(table, QuantisedMatrix)


def _add(sums: _Sums, left: Rows, right: Rows, start: int, stop: int, copies: bool) -> None:
    """Compare one block. Both sides are multiplied by both divisors, so that nothing is rounded by a division."""
    first, second = left.block(start, stop), right.block(start, stop)
    crossed = first.values * right.divisor, second.values * left.divisor
    scale = abs(left.divisor * right.divisor)
    error = np.abs(crossed[0] - crossed[1]) / scale
    error[(crossed[0] == crossed[1])] = 0.0
    sums.add(_divided(first, left.divisor), _divided(second, right.divisor), error)


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
    if copies and _calibrated(figures):
        return PairRelation(PairState.CALIBRATED_COPY, figures=figures)
    return PairRelation(PairState.DIFFERENT, figures=figures)


def _calibrated(figures: ErrorFigures) -> bool:
    return (
        figures.rms_steps is not None
        and figures.relative_rms is not None
        and figures.rms_steps <= CALIBRATED_STEPS
        and figures.relative_rms <= CALIBRATED_RMS
    )
