"""Compare the quantised weights with the checkpoint, and put dequantised weights into the torch model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from tieconv.checkpoint.results.quantised import QuantisedWeight
from tieconv.checkpoint.value_type import record
from tieconv.onnx.parity.quantised.known_good import Rounding, compare_errors, round_to_nearest
from tieconv.onnx.parity.quantised.matching import Piece, match
from tieconv.onnx.parity.quantised.matrices import Matrix
from tieconv.reference import Reference


@record
class Replaced:
    """A quantised matrix of the graph, and the parameters that its rows are."""

    matrix: Matrix
    pieces: tuple[Piece, ...]


@record
class Compared:
    """Every quantised matrix beside the known-good quantiser, and what it replaces in the torch model.

    ``unmatched`` are the matrices that are similar to no parameter.
    """

    weights: tuple[QuantisedWeight, ...]
    replaced: tuple[Replaced, ...]
    unmatched: tuple[str, ...]

    @property
    def parameters(self) -> frozenset[str]:
        """The names of the quantised parameters."""
        return frozenset(name for weight in self.weights for name in weight.parameters)


def compare(dequantised: Sequence[Matrix], reference: Reference) -> Compared:
    """Compare each quantised matrix with the parameter that it quantises. ``reference`` is the float model.

    One matrix at a time is in memory.
    """
    parameters = _matrices(reference)
    weights, replaced, unmatched = [], [], []
    for matrix in dequantised:
        values = matrix.values()
        pieces = match(values, parameters)
        if not pieces:
            unmatched.append(matrix.name)
            continue
        weights.append(_figures(matrix, pieces, _weight(pieces, parameters), values))
        replaced.append(Replaced(matrix, pieces))
    return Compared(tuple(weights), tuple(replaced), tuple(unmatched))


def put(reference: Reference, replaced: Sequence[Replaced], *, good: bool = False) -> None:
    """Put the values of the graph, or of the known-good quantiser, into the torch model.

    A tied matrix that is quantised for one use only becomes two parameters. ``good`` needs the model of `compare`.
    """
    model = reference.model
    parameters, owners = _matrices(reference), _owners(model)
    inputs = {id(module) for module in model.modules() if hasattr(module, "embedding_dim")}
    for entry in replaced:
        matrix = entry.matrix
        values = round_to_nearest(_weight(entry.pieces, parameters), _rounding(matrix)) if good else matrix.values()
        for piece in entry.pieces:
            for module in owners.get(piece.name, ()):
                if matrix.looked_up if id(module) in inputs else matrix.multiplied:
                    part = torch.from_numpy(np.ascontiguousarray(piece.part(values)))
                    module.weight = torch.nn.Parameter(part.to(module.weight.dtype), requires_grad=False)


def _matrices(reference: Reference) -> dict[str, torch.Tensor]:
    return {name: tensor.detach() for name, tensor in reference.model.named_parameters() if tensor.ndim == 2}


def _weight(pieces: Sequence[Piece], parameters: Mapping[str, torch.Tensor]) -> Any:
    """Return the parameters in the rows of the matrix, in float32 if their type is narrower."""
    parts = [parameters[piece.name].T if piece.turned else parameters[piece.name] for piece in pieces]
    return (parts[0] if len(parts) == 1 else torch.cat(parts)).float().numpy()


def _rounding(matrix: Matrix) -> Rounding:
    return Rounding(matrix.bits, matrix.group, matrix.symmetric)


def _figures(matrix: Matrix, pieces: Sequence[Piece], weight: Any, values: Any) -> QuantisedWeight:
    errors = compare_errors(weight, values, _rounding(matrix))
    return QuantisedWeight(
        name=matrix.name,
        parameters=tuple(piece.name for piece in pieces),
        operator=matrix.operator,
        bits=matrix.bits,
        block=matrix.group,
        symmetric=matrix.symmetric,
        error=errors.graph,
        known_good_error=errors.known_good,
        worst_block=errors.worst,
    )


def _owners(model: Any) -> dict[str, list[Any]]:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    owners: dict[str, list[Any]] = {}
    for module in model.modules():
        weight = getattr(module, "weight", None)
        if weight is not None and id(weight) in names:
            owners.setdefault(names[id(weight)], []).append(module)
    return owners
