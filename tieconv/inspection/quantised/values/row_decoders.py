"""The dequantiser of each scheme, and blocks of rows of a quantised or a float matrix. Imports numpy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

import numpy as np

from tieconv.checkpoint.files.interface import ByteReader
from tieconv.checkpoint.files.weight_file import TensorRecord
from tieconv.checkpoint.quantised_matrix import QuantisedMatrix
from tieconv.checkpoint.value_type import record
from tieconv.inspection.blocks import read
from tieconv.inspection.quantised.schemes import (
    bitsandbytes,
    compressed_tensors,
    fp8_blocks,
    gptq,
    modelopt,
    onnx_blocks,
    tensor_subclasses,
)
from tieconv.inspection.quantised.schemes.ggml_blocks import COMPUTED
from tieconv.inspection.quantised.schemes.interface import CODES, SCALES
from tieconv.inspection.quantised.values import (
    bitsandbytes_values,
    compressed_tensors_values,
    ggml_values,
    gptq_values,
    mlx_values,
    onnx_values,
    tensor_subclass_values,
)
from tieconv.inspection.quantised.values.number_types import INTEGERS, ROUNDOFF, readable_type, to_float64
from tieconv.inspection.quantised.values.part_reader import Decoded, PartReader
from tieconv.inspection.view_reader import readable
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
    compressed_tensors.PACKED: Decoder(compressed_tensors_values.packed_rows, _WORDS),
    f"{compressed_tensors.PLAIN} int-quantized": Decoder(compressed_tensors_values.byte_rows, _BYTES),
    f"{compressed_tensors.PLAIN} float-quantized": Decoder(compressed_tensors_values.byte_rows, _BYTES),
    compressed_tensors.NVFP4: Decoder(
        compressed_tensors_values.nvfp4_rows, _BYTES, divisor=compressed_tensors_values.nvfp4_divisor
    ),
    modelopt.FP8: Decoder(compressed_tensors_values.byte_rows, _BYTES),
    modelopt.NVFP4: Decoder(
        compressed_tensors_values.nvfp4_rows,
        _BYTES,
        divisor=lambda parts: 1 / compressed_tensors_values.nvfp4_divisor(parts),
    ),
    compressed_tensors.MXFP4: Decoder(compressed_tensors_values.mxfp4_rows, _BYTES),
    fp8_blocks.SCHEME: Decoder(compressed_tensors_values.byte_rows, _BYTES),
    gptq.V1: Decoder(gptq_values.gptq_rows, _WORDS, gptq_values.TURNED),
    gptq.V2: Decoder(gptq_values.gptq_rows, _WORDS, gptq_values.TURNED),
    gptq.AWQ: Decoder(gptq_values.awq_rows, _WORDS, gptq_values.TURNED),
    bitsandbytes.FOUR_BIT: Decoder(bitsandbytes_values.four_bit_rows, _ANY),
    bitsandbytes.EIGHT_BIT: Decoder(
        bitsandbytes_values.eight_bit_rows, _BYTES, divisor=lambda parts: bitsandbytes_values.EIGHT_BIT_DIVISOR
    ),
    "MLX affine": Decoder(mlx_values.affine_rows, _WORDS),
    "MLX nvfp4": Decoder(mlx_values.nvfp4_rows, _WORDS),
    "MLX mxfp4": Decoder(mlx_values.mxfp4_rows, _WORDS),
    "MLX mxfp8": Decoder(mlx_values.mxfp8_rows, _WORDS),
    onnx_blocks.SCHEME: Decoder(onnx_values.block_rows, frozenset({"U8", "U4", "I4"})),
    tensor_subclasses.TORCHAO: Decoder(tensor_subclass_values.byte_rows, _BYTES),
    tensor_subclasses.QUANTO: Decoder(tensor_subclass_values.byte_rows, _BYTES),
}
_GGML = Decoder(ggml_values.ggml_rows, COMPUTED)


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
