"""The faults of the quantised embedding and head that the rules QNT002 to QNT005 report."""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.quantised_matrix import EMBEDDING, FaultKind, MatrixFault, QuantisedMatrix


def first_faults(inspection: Inspection, kind: FaultKind) -> Iterator[tuple[QuantisedMatrix, MatrixFault]]:
    """Yield each quantised matrix with a fault of this kind, and the first such fault."""
    for matrix in inspection.quantised.matrices if inspection.quantised else ():
        fault = next((fault for fault in matrix.faults if fault.kind is kind), None)
        if fault is not None:
            yield matrix, fault


def noun(matrix: QuantisedMatrix) -> str:
    """Return the role of a matrix in words."""
    return "input embedding" if matrix.role == EMBEDDING else "output head"
