"""Find the parameters of the torch model that the matrices of a graph quantise, by their values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt
import torch

from tieconv.checkpoint.value_type import record

Floats = npt.NDArray[np.float32]
SIMILAR = 0.5
"""Largest relative RMS error of a matrix against its parameter. Other matrices of a model have about 1.4."""
_ROWS = 64


@record
class Piece:
    """Rows ``start`` to ``end`` of a matrix are the parameter ``name``, or its transpose."""

    name: str
    start: int
    end: int
    turned: bool

    def part(self, values: Floats) -> Floats:
        """Return the values in the shape of the parameter."""
        rows = values[self.start : self.end]
        return rows.T if self.turned else rows


def match(values: Floats, parameters: Mapping[str, torch.Tensor]) -> tuple[Piece, ...]:
    """Return the parameters that the rows of ``values`` hold, in order; empty if some rows hold none."""
    pieces: list[Piece] = []
    start = 0
    while start < len(values):
        piece = min(_candidates(values, parameters, start), default=None, key=lambda candidate: candidate[0])
        if piece is None:
            return ()
        pieces.append(piece[1])
        start = piece[1].end
    return tuple(pieces)


def _candidates(values: Floats, parameters: Mapping[str, torch.Tensor], start: int) -> Iterator[tuple[float, Piece]]:
    left, columns = len(values) - start, values.shape[1]
    for name, parameter in parameters.items():
        for turned in (False, True):
            weight = parameter.T if turned else parameter
            if weight.shape[1] != columns or len(weight) > left:
                continue
            error = _sampled_error(weight, values[start : start + len(weight)])
            if error <= SIMILAR:
                yield error, Piece(name, start, start + len(weight), turned)


def _sampled_error(weight: torch.Tensor, values: Floats) -> float:
    rows = np.linspace(0, len(weight) - 1, min(_ROWS, len(weight))).astype(int)
    sample = weight[rows].double().numpy()
    size = np.square(sample).sum()
    return float(np.sqrt(np.square(values[rows] - sample).sum() / size)) if size else float("inf")
