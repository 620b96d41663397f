"""Describe the matrices of MatMulNBits and GatherBlockQuantized. Source: the operators of ONNX Runtime 1.32."""

from __future__ import annotations

from collections.abc import Mapping

from tieconv.checkpoint.files.graph_structure import QuantisedRead
from tieconv.checkpoint.files.weight_file import TensorRecord
from tieconv.checkpoint.quantised_matrix import QuantisedMatrix, QuantisedPart
from tieconv.inspection.quantised.schemes.interface import CODES, SCALES, UNDECIDED, ZERO_POINTS

SCHEME = "ONNX blocks"
_PURPOSES = (CODES, SCALES, ZERO_POINTS)
_WIDTHS = (2, 4, 8)


def describe(read: QuantisedRead, tensors: Mapping[str, TensorRecord], width: int | None) -> QuantisedMatrix:
    """Return the matrix that an operator reads; ``width`` is the config's hidden size."""
    names = read.parts or (read.name,)
    records = [tensors[name] for name in names]
    parts = tuple(
        QuantisedPart(role, record.name, record.dtype, record.shape, record.nbytes)
        for role, record in zip(_PURPOSES, records, strict=False)
    )
    shape = _shape(read, records[0], width) if read.parts else None
    uncomputed = "" if shape else f"tieconv does not read the codes of {read.operator}"
    return QuantisedMatrix(
        read.role,
        read.name,
        SCHEME if read.parts else f"ONNX {read.operator}",
        (read.bits or None) if read.parts else None,
        (1, read.block) if read.parts and read.block else None,
        ZERO_POINTS not in {part.role for part in parts} if read.parts else None,
        shape,
        parts,
        UNDECIDED,
        (),
        uncomputed,
    )


def _shape(read: QuantisedRead, codes: TensorRecord, width: int | None) -> tuple[int, int] | None:
    """Return [V, H]. The last block of a row may be padded, and the hidden size says by how much."""
    if read.bits not in _WIDTHS or not codes.elements or read.block < 1:
        return None
    rows = codes.shape[0]
    columns = codes.elements // rows
    if codes.dtype == "U8":
        columns = columns * 8 // read.bits
    elif codes.dtype not in ("U4", "I4") or read.bits != 4 or columns % 2:  # two codes in each byte of a row
        return None
    padded = width is not None and columns - read.block < width <= columns
    return rows, width if padded and width is not None else columns
