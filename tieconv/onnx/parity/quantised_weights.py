"""Dequantise the matrices of a graph, compare them with the checkpoint, and put them into the torch model."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import torch

from tieconv.checkpoint.results.parity import QuantisedWeight
from tieconv.checkpoint.value_type import identity_record, record
from tieconv.onnx.graph_model import sides
from tieconv.onnx.share.find import integer, is_standard
from tieconv.onnx.share.node_patterns import Names, replace_node
from tieconv.onnx.share.quantised import Table, heads, lookups
from tieconv.reference.model import Reference

# Dequantise the matrices of a graph, as its operators do.

_MATRIX = 2
_AT_ONCE = 1 << 22
"""Elements that are dequantised at a time."""
_CODES = frozenset({ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT4, ir.DataType.UINT4})


@identity_record
class Matrix:
    """A quantised matrix of ``shape`` (R, C). ``values`` returns what the graph computes with, in float32.

    Each call of ``values`` dequantises again, so that only one float matrix is in memory. ``looked_up`` and
    ``multiplied`` say how the graph uses the matrix.
    """

    name: str
    operator: str
    shape: tuple[int, int]
    values: Callable[[], npt.NDArray[np.float32]]
    rounding: Rounding
    looked_up: bool
    multiplied: bool


def matrices(model: ir.Model) -> Iterator[Matrix]:
    """Yield each quantised matrix of the graph once for each set of scales."""
    seen: set[tuple[int, int]] = set()
    for table in (*heads(model), *lookups(model)):
        key = (id(table.codes), id(table.scales))
        if key not in seen:
            seen.add(key)
            yield _of_blocks(table, looked_up={id(lookup.codes) for lookup in lookups(model)})
    for graph in model.graphs():
        for node in graph:
            made = None
            if is_standard(node, "DequantizeLinear"):
                made = _of_dequantised(node)
            elif is_standard(node, "MatMulInteger"):
                made = _of_integers(node)
            if made is not None:
                yield made


def unread(model: ir.Model) -> Iterator[str]:
    """Yield clauses about quantised nodes whose matrix `matrices` cannot dequantise."""
    read = {id(table.node) for table in (*heads(model), *lookups(model))}
    for graph in model.graphs():
        for node in graph:
            if node.op_type in ("MatMulNBits", "GatherBlockQuantized") and id(node) not in read:
                codes = node.inputs[1 if node.op_type == "MatMulNBits" else 0]
                if codes is not None and codes.producer() is None:
                    yield f"{node.op_type} {node.name} reads codes in a form that tieconv does not know"
            elif node.op_type in _UNKNOWN:
                yield f"{node.op_type} {node.name} has no dequantised form that tieconv knows"


_UNKNOWN = frozenset({
    "MatMulBnb4", "QLinearMatMul", "QGemm", "QMoE", "QAttention", "DynamicQuantizeMatMul", "MatMulIntegerToFloat",
    "QEmbedLayerNormalization", "ConvInteger", "QLinearConv",
})  # fmt: skip


def _of_blocks(table: Table, looked_up: set[int]) -> Matrix:
    width = integer(table.node, "K", table.blocks * table.block)
    multiplied = table.node.op_type == "MatMulNBits"
    gathered = id(table.codes) in looked_up or _gathered(table.codes)

    def values() -> npt.NDArray[np.float32]:
        made = np.empty((table.rows, width), np.float32)
        step = max(1, _AT_ONCE // (table.blocks * table.block))
        packed = _numbers(table.codes).reshape(table.rows, -1)
        scales, zeros = _scales_and_zeros(table)
        for start in range(0, table.rows, step):
            part = slice(start, start + step)
            codes = _unpacked(packed[part], table.bits)[:, : table.blocks * table.block]
            blocks = codes.reshape(-1, table.blocks, table.block).astype(np.float32)
            made[part] = ((blocks - zeros[part]) * scales[part]).reshape(len(blocks), -1)[:, :width]
        return made

    rounding, name = Rounding(table.bits, table.block, table.zeros is None), str(table.codes.name)
    return Matrix(name, table.node.op_type, (table.rows, width), values, rounding, gathered, multiplied)


def _scales_and_zeros(table: Table) -> tuple[Any, Any]:
    """Return scales and zero points, each R × blocks × 1."""
    scales = _numbers(table.scales).astype(np.float32).reshape(table.rows, table.blocks, 1)
    zeros: Any = np.full_like(scales, 1 << (table.bits - 1))
    # Some quantisers store them as floats.
    if table.zeros is not None and table.zeros.dtype is not ir.DataType.UINT8:
        zeros = _numbers(table.zeros).astype(np.float32).reshape(table.rows, table.blocks, 1)
    elif table.zeros is not None:
        packed = _unpacked(_numbers(table.zeros).reshape(table.rows, -1), table.bits)
        zeros = packed.reshape(table.rows, -1)[:, : table.blocks, None].astype(np.float32)
    return scales, zeros


def _gathered(codes: ir.Value) -> bool:
    return any(is_standard(node, "Gather") and index == 0 for node, index in codes.uses())


def _of_dequantised(node: ir.Node) -> Matrix | None:
    """Return the matrix of a DequantizeLinear, also behind a Gather or Transpose of its codes."""
    gathers = False
    codes = node.inputs[0]
    while codes is not None and (maker := codes.producer()) is not None and is_standard(maker, "Gather", "Transpose"):
        gathers = gathers or maker.op_type == "Gather"
        codes = maker.inputs[0]
    if not _is_codes(codes):
        return None
    assert codes is not None
    stored = codes
    scale = _floats(node.inputs[1])
    zeros = node.inputs[_MATRIX] if len(node.inputs) > _MATRIX else None
    zero = np.zeros_like(scale) if zeros is None else _floats(zeros)
    shape, group = _layout(node, sides(stored.const_value.shape), scale.size)  # type: ignore[union-attr]

    def values() -> npt.NDArray[np.float32]:
        numbers, scales, shift = _by_groups(node, _numbers(stored).astype(np.float32), scale, zero)
        made: npt.NDArray[np.float32] = (numbers - shift) * scales
        return made

    users = [user for user, _ in node.outputs[0].uses()]
    looked_up = gathers or any(is_standard(user, "Gather") for user in users)
    multiplied = not gathers and any(not is_standard(user, "Gather") for user in users)
    bits = 4 if codes.dtype in (ir.DataType.INT4, ir.DataType.UINT4) else 8
    rounding = Rounding(bits, group, not zero.any())
    return Matrix(str(codes.name), "DequantizeLinear", shape, values, rounding, looked_up, multiplied)


def _layout(node: ir.Node, shape: tuple[int, ...], scales: int) -> tuple[tuple[int, int], int]:
    """Return the shape of the matrix with each group in a row, and the group's size."""
    rows, columns = shape
    if scales == 1:
        return (rows, columns), rows * columns
    block = integer(node, "block_size", 0)
    by_column = integer(node, "axis", 1) % _MATRIX == 1
    moved = (columns, rows) if by_column != bool(block) else (rows, columns)
    return moved, block or moved[1]


def _by_groups(node: ir.Node, values: Any, scale: Any, zero: Any) -> tuple[Any, Any, Any]:
    """Return values, scales and zero points that can be combined, with each group in a row."""
    if scale.size == 1:
        return values, scale, zero
    axis, block = integer(node, "axis", 1) % values.ndim, integer(node, "block_size", 0)
    if not block:
        values = np.moveaxis(values, axis, 0)
        return values, scale.reshape(-1, 1), zero.reshape(-1, 1)
    values = np.moveaxis(values, axis, -1)
    scale, zero = (np.repeat(np.moveaxis(array, axis, -1), block, -1) for array in (scale, zero))
    return values, scale[..., : values.shape[-1]], zero[..., : values.shape[-1]]


def _of_integers(node: ir.Node) -> Matrix | None:
    codes = node.inputs[1]
    scale = b_scale(node)
    if not _is_codes(codes) or scale is None:
        return None
    assert codes is not None
    zero = _floats(node.inputs[3]) if len(node.inputs) > 3 and node.inputs[3] is not None else np.zeros(1, np.float32)
    stored, factor = codes, _floats(scale)
    inputs, outputs = sides(stored.const_value.shape)  # type: ignore[union-attr]

    def values() -> npt.NDArray[np.float32]:
        made = _numbers(stored).astype(np.float32)
        made -= zero
        made *= factor
        turned: npt.NDArray[np.float32] = made.T
        return turned

    group = inputs if factor.size > 1 else inputs * outputs
    rounding = Rounding(8, group, not zero.any())
    return Matrix(
        str(stored.name), "MatMulInteger", (outputs, inputs), values, rounding, _gathered(stored), multiplied=True
    )


def b_scale(node: ir.Node) -> ir.Value | None:
    """Return the scale of a MatMulInteger's weight: the stored factor that multiplies its product."""
    users = [user for user, _ in node.outputs[0].uses()]
    while users and is_standard(users[0], "Cast"):
        users = [user for user, _ in users[0].outputs[0].uses()]
    for user in users:
        for factor in user.inputs if is_standard(user, "Mul") else ():
            maker = factor.producer() if factor is not None else None
            inputs = maker.inputs if maker is not None and is_standard(maker, "Mul") else (factor,)
            stored = next((value for value in inputs if value is not None and value.const_value is not None), None)
            if stored is not None:
                return stored
    return None


def _is_codes(value: ir.Value | None) -> bool:
    tensor = None if value is None else value.const_value
    return tensor is not None and tensor.dtype in _CODES and len(tensor.shape) == _MATRIX


def _numbers(value: ir.Value) -> Any:
    assert value.const_value is not None
    return value.const_value.numpy()


def _floats(value: ir.Value | None) -> Any:
    assert value is not None
    return np.atleast_1d(_numbers(value)).astype(np.float32)


def _unpacked(packed: Any, bits: int) -> Any:
    """Return one code for each element; the lower half of a byte is first."""
    if bits == 8:
        return packed
    return np.stack([packed & 15, packed >> 4], -1).reshape(*packed.shape[:-1], -1)


# Write a copy of a quantised graph whose activations stay float, so that only faults and rounding remain.

_LEVEL = "accuracy_level"
_EXACT = (0, 1)
"""Levels at which MatMulNBits multiplies in float32."""


def exact_copy(path: str, directory: Path) -> str | None:
    """Write the copy to ``directory`` and return its path. Return ``None`` if no activation is quantised.

    MatMulNBits gets the accuracy level of float32. A MatMulInteger on a quantised activation becomes a MatMul on the
    dequantised weight.
    """
    model = ir.load(path)
    changed = [_exact_level(node) or _float_product(node, model) for node in list(model.graph.all_nodes())]
    if not any(changed):
        return None
    to = directory / "exact.onnx"
    ir.save(model, to, external_data="exact.onnx.data")
    return os.fspath(to)


def activation_forms(path: str) -> frozenset[str]:
    """Return how the graph quantises activations: ``tensor`` as MatMulInteger does, ``block`` as MatMulNBits does."""
    nodes = list(ir.load(path).graph.all_nodes())
    levels = (node.attributes.get(_LEVEL) for node in nodes if node.op_type == "MatMulNBits")
    block = any(level is not None and level.as_int() not in _EXACT for level in levels)
    tensor = any(node.op_type == "MatMulInteger" for node in nodes)
    return frozenset(name for name, used in (("block", block), ("tensor", tensor)) if used)


def _exact_level(node: ir.Node) -> bool:
    level = node.attributes.get(_LEVEL) if node.op_type == "MatMulNBits" else None
    if level is None or level.as_int() in _EXACT:
        return False
    node.attributes.pop(_LEVEL)
    return True


def _float_product(node: ir.Node, model: ir.Model) -> bool:
    if not is_standard(node, "MatMulInteger") or node.graph is None:
        return False
    scale = b_scale(node)
    quantised = node.inputs[0].producer() if node.inputs[0] is not None else None
    users = [user for user, _ in node.outputs[0].uses()]
    while len(users) == 1 and is_standard(users[0], "Cast"):
        users = [user for user, _ in users[0].outputs[0].uses()]
    product = users[0] if len(users) == 1 and is_standard(users[0], "Mul") else None
    if scale is None or product is None or quantised is None or not is_standard(quantised, "DynamicQuantizeLinear"):
        return False
    zeros = [] if len(node.inputs) < 4 or node.inputs[3] is None else [node.inputs[3]]
    per_column = scale.shape is not None and len(scale.shape) == 1
    weight = ir.node("DequantizeLinear", [node.inputs[1], scale, *zeros], {"axis": 1} if per_column else {})
    made = [weight, ir.node("MatMul", [quantised.inputs[0], weight.outputs[0]])]
    replace_node(product, made, Names(model))
    return True


# Compare the quantised weights with the checkpoint, and put dequantised weights into the torch model.

Replaced = tuple["Matrix", tuple["Piece", ...]]
"""A quantised matrix of the graph, and the parameters that its rows are."""


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
        replaced.append((matrix, pieces))
    return Compared(tuple(weights), tuple(replaced), tuple(unmatched))


def put(reference: Reference, replaced: Sequence[Replaced], *, good: bool = False) -> None:
    """Put the values of the graph, or of the known-good quantiser, into the torch model.

    A tied matrix that is quantised for one use only becomes two parameters. ``good`` needs the model of `compare`.
    """
    model = reference.model
    parameter_names = {id(parameter): name for name, parameter in model.named_parameters()}
    owners: dict[str, list[Any]] = {}
    for module in model.modules():
        weight = getattr(module, "weight", None)
        if weight is not None and id(weight) in parameter_names:
            owners.setdefault(parameter_names[id(weight)], []).append(module)
    parameters = _matrices(reference)
    inputs = {id(module) for module in model.modules() if hasattr(module, "embedding_dim")}
    for matrix, pieces in replaced:
        values = round_to_nearest(_weight(pieces, parameters), matrix.rounding) if good else matrix.values()
        for piece in pieces:
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


def _figures(matrix: Matrix, pieces: Sequence[Piece], weight: Any, values: Any) -> QuantisedWeight:
    # Compare the values of a graph with ``weight``, beside those of `round_to_nearest`.
    rounding = matrix.rounding
    size, ours, theirs = 0.0, list[Doubles](), list[Doubles]()
    for rows, parts, good in _rounded_blocks(weight, rounding):
        made = _groups(values[rows].astype(np.float64), rounding.group)
        size += float(np.square(parts).sum())
        ours.append(np.square(made - parts).sum(1))
        theirs.append(np.square(good - parts).sum(1))
    # If all elements share a scale, they are one group, whatever the blocks are.
    join = (lambda sums: np.array([np.concatenate(sums).sum()])) if rounding.group >= weight.size else np.concatenate
    sums = [join(side) for side in (ours, theirs)]
    error, known_good = (float(np.sqrt(side.sum() / size)) if size else 0.0 for side in sums)
    return QuantisedWeight(
        name=matrix.name,
        parameters=tuple(piece.name for piece in pieces),
        operator=matrix.operator,
        bits=rounding.bits,
        block=rounding.group,
        symmetric=rounding.symmetric,
        error=error,
        known_good_error=known_good,
        worst_block=worst_quotient(*(np.sqrt(side / rounding.group) for side in sums)),
    )


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
    """How a quantiser rounds a matrix.

    ``group`` elements of a row, one after another, share a scale; more than a row if rows share it.
    """

    bits: int
    group: int
    symmetric: bool


def round_to_nearest(weight: Elements, rounding: Rounding) -> Elements:
    """Return the dequantised form of ``weight``, in its type."""
    made = np.empty(weight.shape, weight.dtype)
    for rows, _, good in _rounded_blocks(weight, rounding):
        made[rows] = good.reshape(len(made[rows]), -1)[:, : weight.shape[1]]
    return made


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
