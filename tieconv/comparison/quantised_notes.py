"""Say which differing tensors are parts of one quantised matrix."""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.results.comparison import TensorDifference
from tieconv.text import count, listed, shown


def matrix_notes(a: Inspection, b: Inspection, tensors: tuple[TensorDifference, ...]) -> Iterator[str]:
    """Yield a note for each quantised embedding or head of which some parts differ."""
    differing = {name for difference in tensors for name in (difference.a, difference.b) if name is not None}
    matrices = {
        matrix.name: matrix
        for model in (b, a)
        for matrix in (model.quantised.matrices if model.quantised is not None else ())
    }
    for name, matrix in sorted(matrices.items()):
        parts = [part.name for part in matrix.parts if part.name in differing]
        if parts:
            verb = "differs" if len(parts) == 1 else "differ"
            whole = f"{shown(name)} is one quantised matrix in {count(len(matrix.parts), 'part')}"
            yield f"{whole}, and {listed(parts)} {verb}"
