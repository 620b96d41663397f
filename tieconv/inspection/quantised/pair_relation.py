"""Prove how a head and an embedding relate if one of them is quantised, or both are."""

from __future__ import annotations

from collections.abc import Mapping

from tieconv.checkpoint.files.dtypes import FLOATS
from tieconv.checkpoint.files.interface import ByteReader
from tieconv.checkpoint.files.weight_file import TensorRecord
from tieconv.checkpoint.inspection import Depth
from tieconv.checkpoint.quantised_matrix import PairRelation, PairState, QuantisedMatrix
from tieconv.inspection.blocks import is_sampled
from tieconv.inspection.equality.compare_bytes import equal
from tieconv.inspection.quantised.schemes import onnx_blocks
from tieconv.inspection.view_reader import readable

LONGEST_ROW = 1 << 20
"""Columns of the widest matrix whose values are compared, so that one row fits in memory."""

Table = QuantisedMatrix | TensorRecord
"""A quantised matrix, or the stored tensor of a float matrix."""


def relate_tables(
    embedding: Table, head: Table, tensors: Mapping[str, TensorRecord], reader: ByteReader, depth: Depth
) -> PairRelation:
    """Return the proved relation of the head to the embedding. Raises what the reader raises."""
    if depth is Depth.HEADER:
        return PairRelation(PairState.UNREAD, "their bytes were not read")
    if depth is Depth.CANDIDATES and is_sampled(reader):
        return PairRelation(PairState.UNREAD, "on the Hub tieconv compares quantised matrices only with --depth full")
    broken = next((table for table in (embedding, head) if isinstance(table, QuantisedMatrix) and table.faults), None)
    if broken is not None:
        return PairRelation(PairState.UNREAD, f"the quantised {broken.role} is broken")
    if isinstance(embedding, QuantisedMatrix) and isinstance(head, QuantisedMatrix):
        differing = _parts_differing(embedding, head, tensors, reader)
        if not differing:
            return PairRelation(PairState.EQUAL, bytes_wasted=_wasted(embedding, head, tensors))
        compared = _compared(embedding, head, tensors, reader)
        return PairRelation(compared.state, compared.reason, differing, compared.figures)
    return _compared(embedding, head, tensors, reader)


def _parts_differing(
    embedding: QuantisedMatrix, head: QuantisedMatrix, tensors: Mapping[str, TensorRecord], reader: ByteReader
) -> tuple[str, ...]:
    """Return what differs: ``scheme``, or the purposes of parts; empty if every byte is equal."""
    if (embedding.scheme, embedding.bits, embedding.block) != (head.scheme, head.bits, head.block) or not head.scheme:
        return ("scheme",)
    roles = dict.fromkeys(part.role for part in (*embedding.parts, *head.parts))
    return tuple(role for role in roles if not _part_equal(embedding, head, role, tensors, reader))


def _part_equal(
    embedding: QuantisedMatrix,
    head: QuantisedMatrix,
    role: str,
    tensors: Mapping[str, TensorRecord],
    reader: ByteReader,
) -> bool:
    names = [[part.name for part in matrix.parts if part.role == role] for matrix in (embedding, head)]
    if len(names[0]) != len(names[1]):
        return False
    for left, right in zip(*names, strict=True):
        first, second = tensors[left], tensors[right]
        if first.dtype != second.dtype or (first.shape != second.shape and head.scheme != onnx_blocks.SCHEME):
            return False  # operators of ONNX read the same bytes in two shapes
        dense_reader, (first, second) = readable(reader, (first, second))
        if not equal(dense_reader, first.range, second.range):
            return False
    return True


def _wasted(embedding: QuantisedMatrix, head: QuantisedMatrix, tensors: Mapping[str, TensorRecord]) -> int:
    ranges = {tensors[part.name].range for part in embedding.parts}
    return sum(part.nbytes for part in head.parts if tensors[part.name].range not in ranges)


def _compared(embedding: Table, head: Table, tensors: Mapping[str, TensorRecord], reader: ByteReader) -> PairRelation:
    """Compare every value. Both matrices are dequantised block by block."""
    shapes = embedding.shape, head.shape
    unread = _unread(embedding) or _unread(head)
    if unread:
        return PairRelation(PairState.UNREAD, unread)
    if shapes[0] != shapes[1]:
        sides = ["×".join(map(str, shape or ())) for shape in shapes]
        return PairRelation(PairState.DIFFERENT, f"the embedding is {sides[0]} and the head {sides[1]}")
    if (shapes[0] or (0, 0))[-1] > LONGEST_ROW:
        return PairRelation(PairState.UNREAD, f"their rows have more than {LONGEST_ROW:,} columns")
    from tieconv.inspection.quantised.values.table_comparison import compare_values

    return compare_values(embedding, head, tensors, reader)


def _unread(table: Table) -> str:
    """Return why the values of a table are unknown; empty if tieconv knows them."""
    if isinstance(table, QuantisedMatrix):
        return "" if table.reads else table.uncomputed or "the shape of the matrix is unknown"
    if table.dtype not in FLOATS:
        return f"tieconv does not compare {table.dtype} values with codes"
    return "" if len(table.shape) == 2 and table.elements else "the float tensor is not a matrix"
