"""Estimate the bytes of an exported graph's data before it is made."""

from __future__ import annotations

from collections.abc import Collection

from tieconv.checkpoint.inspection import Inspection
from tieconv.onnx.export.ties import tied_names
from tieconv.onnx.quantise.scheme import BLOCK, Scheme


def estimated_bytes(
    evidence: Inspection, precision: str, quantise: Scheme | None, left_out: Collection[str] = ()
) -> int:
    """Return the bytes of the graph's data: every tensor once in the precision, tied ones together.

    The tensors ``left_out`` are not exported. A quantised matrix has ``bits`` for an element, and a scale for each
    block.
    """
    tensors = evidence.checkpoint.tensors
    again = {name for names in tied_names(evidence) for name in [n for n in names if n in tensors][1:]}
    width = 4 if precision == "fp32" else 2
    once = [record for name, record in tensors.items() if name not in again and name not in left_out]
    if quantise is None:
        return sum(record.elements * width for record in once)
    coded = quantise.bits / 8 + (width / BLOCK if quantise is not Scheme.DYNAMIC else 0)
    return sum(int(record.elements * (coded if len(record.shape) > 1 else width)) for record in once)
