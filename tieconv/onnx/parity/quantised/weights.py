"""Compare the quantised weights with the checkpoint, and put dequantised weights into the torch model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from tieconv.checkpoint.results.quantised import QuantisedWeight
from tieconv.checkpoint.value_type import record
from tieconv.onnx.parity.quantised.known_good import Floats, relative_error, round_to_nearest, worst_group
from tieconv.onnx.parity.quantised.matching import Piece, match
from tieconv.onnx.parity.quantised.matrices import Matrix
from tieconv.reference import Reference


@record
class Replaced:
    """A parameter and its dequantised values: of the graph, and of the known-good quantiser."""

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    name: str
    graph: Floats
    good: Floats
    looked_up: bool
    multiplied: bool


@record
class Compared:
    """Every quantised matrix beside the known-good quantiser, and the values for the torch model.

    ``unmatched`` are the matrices that are similar to no parameter.
    """

    weights: tuple[QuantisedWeight, ...]
    replaced: tuple[Replaced, ...]
    unmatched: tuple[str, ...]


def compare(dequantised: Sequence[Matrix], reference: Reference) -> Compared:
    """Compare each quantised matrix with the parameter that it quantises. ``reference`` is the float model."""
    parameters = {
        name: parameter.detach().double().numpy()
        for name, parameter in reference.model.named_parameters()
        if parameter.ndim == 2
    }
    weights, replaced, unmatched = [], [], []
    for matrix in dequantised:
        pieces = match(matrix, parameters)
        if not pieces:
            unmatched.append(matrix.name)
            continue
        weight = np.concatenate([_rows(parameters[piece.name], piece) for piece in pieces])
        graph = matrix.values.astype(np.float64)
        good = round_to_nearest(weight, matrix.bits, matrix.group, symmetric=matrix.symmetric)
        weights.append(_figures(matrix, pieces, weight, graph, good))
        replaced += [
            Replaced(piece.name, piece.part(graph), piece.part(good), matrix.looked_up, matrix.multiplied)
            for piece in pieces
        ]
    return Compared(tuple(weights), tuple(replaced), tuple(unmatched))


def _rows(parameter: Floats, piece: Piece) -> Floats:
    return parameter.T if piece.turned else parameter


def _figures(matrix: Matrix, pieces: Sequence[Piece], weight: Floats, graph: Floats, good: Floats) -> QuantisedWeight:
    return QuantisedWeight(
        name=matrix.name,
        parameters=tuple(piece.name for piece in pieces),
        operator=matrix.operator,
        bits=matrix.bits,
        block=matrix.group,
        symmetric=matrix.symmetric,
        error=relative_error(weight, graph),
        known_good_error=relative_error(weight, good),
        worst_block=worst_group(weight, graph, good, matrix.group),
    )


def put(reference: Reference, replaced: Sequence[Replaced], *, good: bool = False) -> None:
    """Put the values of the graph, or of the known-good quantiser, into the torch model.

    A tied matrix that is quantised for one use only becomes two parameters.
    """
    model = reference.model
    owners = _owners(model)
    inputs = {id(module) for module in model.modules() if hasattr(module, "embedding_dim")}
    for entry in replaced:
        for module in owners.get(entry.name, ()):
            if entry.looked_up if id(module) in inputs else entry.multiplied:
                values = torch.from_numpy(np.ascontiguousarray(entry.good if good else entry.graph))
                module.weight = torch.nn.Parameter(values.to(module.weight.dtype), requires_grad=False)


def _owners(model: Any) -> dict[str, list[Any]]:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    owners: dict[str, list[Any]] = {}
    for module in model.modules():
        weight = getattr(module, "weight", None)
        if weight is not None and id(weight) in names:
            owners.setdefault(names[id(weight)], []).append(module)
    return owners
