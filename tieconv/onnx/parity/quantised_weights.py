"""Compare the quantised weights with the checkpoint, and put dequantised weights into the torch model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tieconv.checkpoint.results.parity import QuantisedWeight
from tieconv.checkpoint.value_type import record
from tieconv.onnx.parity.quantised_matrices import Matrix
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


# Find the parameters of the torch model that the matrices of a graph quantise, by their values.


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


# Quantise a matrix as the simplest correct quantiser does: round to nearest, with the scheme of the graph.


Doubles = npt.NDArray[np.float64]
Elements = npt.NDArray[Any]
"""R × C, of any float type; it is read by blocks of rows, and computed with in float64."""
_STEP = 1 << 22
"""Elements in a block of rows."""
_GROUPS = 32
"""Fewest groups whose median says how a quantiser works."""
_MEDIAN = 2.0
"""Largest median of a correct quantiser. ONNX Runtime's GPTQ measures 1.4; zero points that are off by one, 3.5."""


@record
class Rounding:
    """How a quantiser rounds a matrix. ``group`` consecutive elements of a row share a scale, or all elements."""

    bits: int
    group: int
    symmetric: bool


@record
class WeightErrors:
    """The relative RMS error of a graph's matrix and of the known-good one, and `worst_quotient`."""

    graph: float
    known_good: float
    worst: float


def round_to_nearest(weight: Elements, rounding: Rounding) -> Elements:
    """Return the dequantised form of ``weight``, in its type."""
    made = np.empty(weight.shape, weight.dtype)
    for rows, _, good in _rounded_blocks(weight, rounding):
        made[rows] = good.reshape(len(made[rows]), -1)[:, : weight.shape[1]]
    return made


def compare_errors(weight: Elements, graph: Elements, rounding: Rounding) -> WeightErrors:
    """Compare the values of a graph with ``weight``, beside those of `round_to_nearest`."""
    size, ours, theirs = 0.0, list[Doubles](), list[Doubles]()
    for rows, parts, good in _rounded_blocks(weight, rounding):
        made = _groups(graph[rows].astype(np.float64), rounding.group)
        size += float(np.square(parts).sum())
        ours.append(np.square(made - parts).sum(1))
        theirs.append(np.square(good - parts).sum(1))
    # If all elements share a scale, they are one group, whatever the blocks are.
    join = (lambda sums: np.array([np.concatenate(sums).sum()])) if rounding.group >= weight.size else np.concatenate
    sums = [join(side) for side in (ours, theirs)]
    error, known_good = (float(np.sqrt(side.sum() / size)) if size else 0.0 for side in sums)
    return WeightErrors(error, known_good, worst_quotient(*(np.sqrt(side / rounding.group) for side in sums)))


def worst_quotient(ours: Doubles, theirs: Doubles) -> float:
    """Return the largest RMS error of a group over that of the known-good quantiser, in units of the median.

    A group may be exact by chance. So an error of ``theirs`` counts as at least a quarter of their average. The median
    is the unit only between 1 and 2, and with at least 32 groups. GPTQ has larger errors in all groups than round to
    nearest, because later weights correct earlier ones.
    """
    least = float(theirs.mean()) / 4
    if not least:
        return 0.0 if not ours.any() else float("inf")
    quotients = ours / np.maximum(theirs, least)
    median = float(np.median(quotients))
    unit = median if len(quotients) >= _GROUPS and 1 < median <= _MEDIAN else 1.0
    return float(quotients.max()) / unit


def _rounded_blocks(weight: Elements, rounding: Rounding) -> Iterator[tuple[slice, Doubles, Doubles]]:
    """Yield blocks of rows, their elements by group, and the same elements rounded."""
    shared = _grid(weight.reshape(1, -1), rounding) if rounding.group >= weight.size else None
    step = max(1, _STEP // weight.shape[1])
    for start in range(0, len(weight), step):
        rows = slice(start, start + step)
        parts = _groups(weight[rows].astype(np.float64), rounding.group)
        scale, zero = shared or _grid(parts, rounding)
        codes = np.round(np.divide(parts, scale, out=np.zeros_like(parts), where=scale != 0)) + zero
        yield rows, parts, (codes.clip(0, (1 << rounding.bits) - 1) - zero) * scale


def _grid(parts: Elements, rounding: Rounding) -> tuple[Doubles, Doubles]:
    """Return the scale and the zero point of each group."""
    levels = 1 << rounding.bits
    if rounding.symmetric:
        largest = np.take_along_axis(parts, np.abs(parts).argmax(1)[:, None], 1).astype(np.float64)
        return largest / -(levels >> 1), np.full_like(largest, levels >> 1)
    low, high = parts.min(1, keepdims=True).astype(np.float64), parts.max(1, keepdims=True).astype(np.float64)
    low, high = np.minimum(low, 0), np.maximum(high, 0)
    scale = (high - low) / (levels - 1)
    return scale, np.round(np.divide(-low, scale, out=np.zeros_like(low), where=scale != 0))


def _groups(weight: Doubles, group: int) -> Doubles:
    """Return the elements by group (groups × elements). The last group of a row is filled with zeros."""
    rows, columns = weight.shape
    if group >= weight.size:
        return weight.reshape(1, -1)
    filled = np.zeros((rows, -(-columns // group) * group))
    filled[:, :columns] = weight
    return filled.reshape(-1, group)
