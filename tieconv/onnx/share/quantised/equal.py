"""Compare two quantised matrices: equal if all codes, scales and zero points are equal."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from tieconv.onnx.share.quantised.block_tables import Table

_PIECE = 1 << 24
_HALF = {4: 0x88, 8: 0x80}
"""A byte of zero points that are half of the range, by the bits of a code."""


def difference(lookup: Table, head: Table) -> str:
    """Return how the two matrices differ; empty if they are one matrix in every byte."""
    if (lookup.bits, lookup.block, lookup.blocks) != (head.bits, head.block, head.blocks):
        return f"{_form(lookup)} and {_form(head)}"
    if not _same(lookup.codes, head.codes):
        return "their codes differ"
    if lookup.scales.dtype is not head.scales.dtype or not _same(lookup.scales, head.scales):
        return "their codes are equal, but their scales differ"
    lookup_zeros, head_zeros = _zeros(lookup), _zeros(head)
    if (lookup_zeros is None) != (head_zeros is None):
        asymmetric = "embedding" if head_zeros is None else "head"
        return f"their codes are equal, but only the {asymmetric} has zero points"
    if lookup_zeros is not None and head_zeros is not None and not _same(lookup_zeros, head_zeros):
        return "their codes are equal, but their zero points differ"
    return ""


def _form(table: Table) -> str:
    return f"{table.bits} bits in blocks of {table.block}"


def _zeros(table: Table) -> ir.Value | None:
    """Return the zero points, or ``None`` if all of them are half of the range, which is the default."""
    if table.zeros is None:
        return None
    return None if (_bytes(table.zeros) == _HALF.get(table.bits, -1)).all() else table.zeros


def _same(first: ir.Value, second: ir.Value) -> bool:
    if first is second:
        return True
    left, right = _bytes(first), _bytes(second)
    if left.size != right.size:
        return False
    return all(
        np.array_equal(left[start : start + _PIECE], right[start : start + _PIECE])
        for start in range(0, left.size, _PIECE)
    )


def _bytes(value: ir.Value) -> np.ndarray:
    """Return the bytes of an initializer. An external one stays mapped from its file."""
    assert value.const_value is not None
    return np.ascontiguousarray(value.const_value.numpy()).reshape(-1).view(np.uint8)
