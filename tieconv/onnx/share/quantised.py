"""Make an embedding and a head of one quantised matrix read one initializer each of codes, scales and zero points."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from tieconv.checkpoint.graph_plan import SharedMatrix
from tieconv.checkpoint.graph_structure import OLDEST_QUANTISED_OPSET, RUNTIMES
from tieconv.checkpoint.value_type import record
from tieconv.onnx.graph_model import GraphFile, opset, shared_matrix, sides
from tieconv.onnx.share.find import MATRIX, describe, drop, integer, is_standard
from tieconv.onnx.share.node_patterns import MICROSOFT, Names, constant, replace_node

QUANTISED = "quantised"
"""The relation of an embedding and a head that hold the same codes, scales and zero points."""


def share_quantised(file: GraphFile, names: Names) -> list[SharedMatrix]:
    """Rewrite the embeddings of the graph that hold the quantised matrix of a head. Return what was done."""
    move_dequantisation(file.model, names)
    products = list(heads(file.model))
    made = [matrix for table in list(lookups(file.model)) for matrix in _share(file, table, products, names)]
    first = {matrix.initializer: matrix for matrix in reversed(made)}
    return [_joined(matrix, made) for matrix in first.values()]


def _joined(matrix: SharedMatrix, every: Sequence[SharedMatrix]) -> SharedMatrix:
    """Return one answer for a head that several embeddings read."""
    same = [answer for answer in every if answer.initializer == matrix.initializer]
    dropped = tuple(dict.fromkeys(name for answer in same for name in answer.dropped))
    nodes = tuple(node for answer in same for node in answer.nodes)
    stored = matrix.stored_after + sum(answer.stored_before - answer.stored_after for answer in same)
    held = matrix.held_after + max(answer.held_before - answer.held_after for answer in same)
    left = next((answer.left for answer in same if answer.left), "")
    return replace(matrix, dropped=dropped, nodes=nodes, stored_before=stored, held_before=held, left=left)


def quantised_pairs(model: ir.Model) -> Iterator[tuple[Table, Table]]:
    """Yield each embedding and the head that holds the same codes, scales and zero points."""
    products = list(heads(model))
    for table in lookups(model):
        head = next((head for head in products if _alike(table, head) and not difference(table, head)), None)
        if head is not None:
            yield table, head


def _share(file: GraphFile, table: Table, products: Sequence[Table], names: Names) -> Iterator[SharedMatrix]:
    alike = [head for head in products if _alike(table, head)]
    head = next((head for head in alike if not difference(table, head)), None)
    if head is None:
        if alike:
            yield _left(file, table, alike[0], difference(table, alike[0]))
        return
    why = _impossible(file, table, head)
    yield _left(file, table, head, why) if why else _applied(file, table, head, names)


def _alike(table: Table, head: Table) -> bool:
    return (table.rows, table.blocks * table.block) == (head.rows, head.blocks * head.block)


def _impossible(file: GraphFile, table: Table, head: Table) -> str:
    if opset(file.model) < OLDEST_QUANTISED_OPSET:
        return f"opset {opset(file.model)} is older than {OLDEST_QUANTISED_OPSET}"
    if head.zeros is not None and head.zeros.dtype is not ir.DataType.UINT8:
        return "the zero points are not integers"
    if any(part.graph is not file.model.graph and part.graph is not table.node.graph for part in head.parts):
        return "a branch of the graph stores the head"
    if not all(_by_rows(part, head.rows) for part in head.parts):
        return "a node besides MatMulNBits reads the flat scales or zero points"
    return ""


def _by_rows(part: ir.Value, rows: int) -> bool:
    """Return whether rows can be gathered: the part is stored by rows, or can be declared so."""
    assert part.const_value is not None
    stored = sides(part.const_value.shape)
    return (len(stored) > 1 and stored[0] == rows) or all(node.op_type == "MatMulNBits" for node, _ in part.uses())


def _applied(file: GraphFile, table: Table, head: Table, names: Names) -> SharedMatrix:
    distinct = {id(part): part for part in (*table.parts, *head.parts)}
    before = sum(nbytes(part) for part in distinct.values())
    folded = nbytes(table.codes) if table.shaped and table.codes is head.codes else 0
    described = describe(table.node)
    for part in head.parts:
        _declare_rows(part, head.rows)
    read = list(table.node.inputs)
    # Replace the node of ``lookup`` by nodes that look up the same rows of ``head``. Each element is
    # computed as before: the code minus the zero point, then one product with the scale.
    node = table.node
    assert isinstance(node.graph, ir.Graph)
    builder = _Builder(node, names)
    ids = node.inputs[1]
    assert ids is not None
    if head.zeros is None:
        codes = builder.op("Gather", [head.codes, ids])
        codes = builder.op("Reshape", [codes, builder.constant([-1, head.blocks * head.block * head.bits // 8])])
        scales = builder.op("Gather", [head.scales, ids])
        scales = builder.op("Reshape", [scales, builder.constant([-1, head.blocks])])
        ends = builder.constant(0), builder.op("Size", [ids]), builder.constant(1)
        rows = builder.op("Range", [*ends])
        rows = builder.op("Reshape", [rows, builder.op("Shape", [ids])], {"allowzero": 1})
        attributes = {"gather_axis": 0, "quantize_axis": 1, "block_size": head.block, "bits": head.bits}
        builder.op(LOOKUP, [codes, rows, scales], attributes, domain=MICROSOFT)
    else:
        _with_zero_points(builder, head, head.zeros, ids)
    replace_node(node, builder.nodes, names)
    for value in read:
        producer = None if value is None else value.producer()
        if producer is not None and producer.op_type in ("Reshape", "Identity"):
            drop(producer)
    spare = [part for part in table.parts if all(part is not survivor for survivor in head.parts)]
    dropped = tuple(str(part.name) for part in spare if _removed(part))
    kinds = (QUANTISED, "folded") if folded else (QUANTISED,)
    stored, held = (before, head.nbytes), (before + folded, head.nbytes)
    return shared_matrix(file, head.codes, kinds, stored, held, dropped, (described,))


def _declare_rows(part: ir.Value, rows: int) -> None:
    """Declare a flat initializer as a matrix with ``rows`` rows. Its bytes stay; MatMulNBits accepts both shapes."""
    tensor = part.const_value
    assert tensor is not None
    if len(tensor.shape) > 1:
        return
    shape = ir.Shape((rows, tensor.size // rows))
    if isinstance(tensor, ir.ExternalTensor):
        stored = tensor.location, tensor.offset, tensor.length, tensor.dtype
        part.const_value = ir.ExternalTensor(*stored, shape=shape, name=tensor.name, base_dir=tensor.base_dir)
    else:
        part.const_value = ir.Tensor(tensor.numpy().reshape(rows, -1), dtype=tensor.dtype, name=tensor.name)
    part.shape = shape


def _removed(part: ir.Value) -> bool:
    """Remove an initializer that no node reads any more. Return whether it is gone."""
    if part.uses() or part.is_graph_output() or part.is_graph_input():
        return False
    if isinstance(part.graph, ir.Graph):
        part.graph.initializers.pop(str(part.name))
    return True


def _left(file: GraphFile, table: Table, head: Table, why: str) -> SharedMatrix:
    distinct = {id(part): part for part in (*table.parts, *head.parts)}
    size = sum(nbytes(part) for part in distinct.values())
    reason = f"the quantised embedding and head stay two matrices: {why} ({table.codes.name}, {head.codes.name})"
    return shared_matrix(file, head.codes, (QUANTISED,), (size, size), (size, size), left=reason)


# Find the matrices that GatherBlockQuantized and MatMulNBits read: codes, scales and zero points.

LOOKUP, PRODUCT = "GatherBlockQuantized", "MatMulNBits"
_CODES, _LOOKUP_SCALES, _PRODUCT_SCALES, _PERMUTED = 0, 2, 2, 4
_STEPS = 8


@record
class Table:
    """A matrix [``rows``, ``blocks`` × ``block``] that ``node`` reads. ``bits`` is the width of a code.

    ``zeros`` is ``None`` if the node subtracts half of the range from each code. ``shaped`` is true if the node reads
    the codes through a Reshape.
    """

    node: ir.Node
    codes: ir.Value
    scales: ir.Value
    zeros: ir.Value | None
    rows: int
    blocks: int
    block: int
    bits: int
    shaped: bool = False

    @property
    def parts(self) -> tuple[ir.Value, ...]:
        """Codes, scales, and zero points if there are any."""
        return (self.codes, self.scales, *(() if self.zeros is None else (self.zeros,)))

    @property
    def nbytes(self) -> int:
        return sum(nbytes(part) for part in self.parts)


def nbytes(value: ir.Value) -> int:
    """Return the bytes of an initializer."""
    assert value.const_value is not None
    return value.const_value.nbytes


def lookups(model: ir.Model) -> Iterator[Table]:
    """Yield the matrices of which nodes look up whole rows, if each row is quantised in blocks of uint8 codes."""
    for node in _nodes(model, LOOKUP):
        if integer(node, "gather_axis", 0) != 0 or integer(node, "quantize_axis", 1) not in (1, -1):
            continue
        table = _table(node, (_CODES, _LOOKUP_SCALES, 3))
        if table is not None:
            yield table


def heads(model: ir.Model) -> Iterator[Table]:
    """Yield the matrices of products. A product that permutes its columns is left out."""
    for node in _nodes(model, PRODUCT):
        table = None if any(node.inputs[_PERMUTED : _PERMUTED + 1]) else _table(node, (1, _PRODUCT_SCALES, 3))
        if table is not None:
            yield table


def _nodes(model: ir.Model, operator: str) -> Iterator[ir.Node]:
    return (node for graph in model.graphs() for node in graph if (node.domain, node.op_type) == (MICROSOFT, operator))


def _table(node: ir.Node, indices: tuple[int, int, int]) -> Table | None:
    initializers = [_initializer(node.inputs[index]) if index < len(node.inputs) else None for index in indices]
    codes, scales, zeros = initializers
    third = len(node.inputs) > indices[2] and node.inputs[indices[2]] is not None
    if codes is None or scales is None or (third and zeros is None) or codes.dtype is not ir.DataType.UINT8:
        return None
    assert codes.const_value is not None and scales.const_value is not None
    bits, block = integer(node, "bits", 4), integer(node, "block_size", 128)
    rows = integer(node, "N", sides(codes.const_value.shape)[0])
    blocks, rest = divmod(scales.const_value.size, rows)
    if rest or rows * blocks * block * bits != codes.const_value.nbytes * 8:
        return None
    return Table(node, codes, scales, zeros, rows, blocks, block, bits, codes is not node.inputs[indices[0]])


def _initializer(value: ir.Value | None) -> ir.Value | None:
    """Return the initializer behind a value, also through Identity and a Reshape."""
    for _ in range(_STEPS):
        if value is None or value.is_graph_input():
            return None
        node = value.producer()
        if node is None:
            return value if value.is_initializer() and value.const_value is not None else None
        if not is_standard(node, "Identity", "Reshape"):
            return None
        value = node.inputs[0]
    return None


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


# Make an embedding read the rows of a head's quantised matrix, and dequantise only these rows.
#
# GatherBlockQuantized and MatMulNBits demand different shapes of their codes. A session stores a reshaped constant
# again. So the rows are gathered first, and reshaped afterwards, which copies nothing that is stored.


class _Builder(ir.tape.Tape):
    """The nodes that replace a node, in the order of their computation, and the constants that they read."""

    def __init__(self, replaced: ir.Node, names: Names) -> None:
        super().__init__()
        self._replaced, self._names = replaced, names

    def constant(self, values: int | Sequence[int], dtype: ir.DataType = ir.DataType.INT64) -> ir.Value:
        return constant(self._replaced, values, self._names, str(values), dtype)


def _with_zero_points(builder: _Builder, head: Table, zeros: ir.Value, ids: ir.Value) -> None:
    """Compute (code − zero point) × scale. A GatherBlockQuantized accepts zero points of constant shape only."""
    whole = builder.op("Shape", [ids])
    dtype = int(head.scales.dtype or ir.DataType.FLOAT)
    blocks = builder.constant([head.blocks, head.block])
    codes = _unpacked(builder, builder.op("Gather", [head.codes, ids]), head.bits)
    codes = builder.op("Reshape", [codes, builder.op("Concat", [whole, blocks], {"axis": 0})], {"allowzero": 1})
    points = _unpacked(builder, builder.op("Gather", [zeros, ids]), head.bits)
    width = builder.constant([-1 if head.bits == 8 else head.blocks + head.blocks % 2])
    if head.bits != 8:
        points = builder.op("Reshape", [points, builder.op("Concat", [whole, width], {"axis": 0})], {"allowzero": 1})
        if head.blocks % 2:
            span = [builder.constant(values) for values in ([0], [head.blocks], [-1])]
            points = builder.op("Slice", [points, *span])
    end = builder.constant([-1])
    points = builder.op("Unsqueeze", [points, end])
    scales = builder.op("Unsqueeze", [builder.op("Gather", [head.scales, ids]), end])
    exact = [builder.op("Cast", [value], {"to": dtype}) for value in (codes, points)]
    product = builder.op("Mul", [builder.op("Sub", exact), scales])
    row = builder.constant([head.blocks * head.block])
    builder.op("Reshape", [product, builder.op("Concat", [whole, row], {"axis": 0})], {"allowzero": 1})


def _unpacked(builder: _Builder, packed: ir.Value, bits: int) -> ir.Value:
    """Return one byte for each code. If a byte holds two codes, they are on a new last axis, the lower half first."""
    if bits == 8:
        return packed
    last_axis = builder.constant([-1])
    low = builder.op("BitwiseAnd", [packed, builder.constant(15, ir.DataType.UINT8)])
    high = builder.op("BitShift", [packed, builder.constant(4, ir.DataType.UINT8)], {"direction": "RIGHT"})
    halves = [builder.op("Unsqueeze", [half, last_axis]) for half in (low, high)]
    return builder.op("Concat", halves, {"axis": -1})


# Move DequantizeLinear behind the lookup of an embedding, and behind the Transpose of a head.
#
# A session folds a Transpose of dequantised codes into a second matrix of codes. The pass lets the lookup and the
# product read the codes. Then it can store them once, in the order of the product.

_OLDEST_OPSET = 13
FUSED = f"{RUNTIMES} fuses a MatMul with the DequantizeLinear of codes that no other node reads, and rounds differently"
"""Why codes with several scales stay a copy if a MatMul reads them alone."""
_CODE_TYPES = (ir.DataType.INT8, ir.DataType.UINT8)


@record
class _Codes:
    """A DequantizeLinear of a stored matrix. ``axis`` is that of its scales, or ``None`` for one scale."""

    node: ir.Node
    codes: ir.Value
    scale: ir.Value
    zero: ir.Value | None
    axis: int | None

    @property
    def scaling(self) -> tuple[ir.Value, ...]:
        """The scale, and the zero point if there is one."""
        return (self.scale,) if self.zero is None else (self.scale, self.zero)

    @property
    def looked_up(self) -> list[ir.Node]:
        """The nodes that look up dequantised rows."""
        users = [node for node, index in self.node.outputs[0].uses() if index == 0]
        return [node for node in users if is_standard(node, "Gather") and integer(node, "axis", 0) in (0, -MATRIX)]

    @property
    def turned(self) -> list[ir.Node]:
        """The nodes that transpose the dequantised matrix."""
        users = [node for node, _ in self.node.outputs[0].uses() if is_standard(node, "Transpose")]
        perms = [node.attributes.get("perm") for node in users]
        return [node for node, perm in zip(users, perms, strict=True) if perm is None or list(perm.as_ints()) == [1, 0]]


def is_fused(value: ir.Value) -> bool:
    """Return whether a session fuses the only product that reads the codes with their DequantizeLinear."""
    users = [node for node, _ in value.uses()]
    if len(users) != 1 or not is_standard(users[0], "DequantizeLinear"):
        return False
    scale = users[0].inputs[1]
    if scale is None or scale.const_value is None or _repeats_scale(users[0], scale.const_value):
        return False
    users = [node for node, _ in users[0].outputs[0].uses()]
    while len(users) == 1 and is_standard(users[0], "Transpose"):
        users = [node for node, _ in users[0].outputs[0].uses()]
    return len(users) == 1 and is_standard(users[0], "MatMul")


def _repeats_scale(node: ir.Node, scale: ir.TensorProtocol) -> bool:
    """Return whether another DequantizeLinear has the same single scale. A session then fuses neither."""
    twins = (twin for twin in node.graph or () if twin is not node and is_standard(twin, "DequantizeLinear"))
    scales = (twin.inputs[1] for twin in twins if scale.size == 1)
    tensors = (value.const_value for value in scales if value is not None)
    return any(tensor is not None and np.array_equal(tensor.numpy(), scale.numpy()) for tensor in tensors)


def move_dequantisation(model: ir.Model, names: Names) -> None:
    """Rewrite the lookups of codes that a product of the graph holds too, and the Transposes of such a product.

    Every element is dequantised with the same arithmetic, so the outputs keep every bit.
    """
    if opset(model) < _OLDEST_OPSET:
        return
    nodes = [node for node in model.graph if is_standard(node, "DequantizeLinear")]
    dequantised = [made for node in nodes if (made := _codes(node)) is not None]
    for lookup in [lookup for lookup in dequantised if lookup.looked_up]:
        copies = (product for product in dequantised if _is_copy(lookup, product))
        products = [
            product
            for product in copies
            if any(node not in product.looked_up for node, _ in product.node.outputs[0].uses())
        ]
        for node in lookup.looked_up if products else ():
            # Gather codes, and dequantise the gathered rows.
            builder, ids = _Builder(node, names), node.inputs[1]
            codes = builder.op("Gather", [lookup.codes, ids])
            codes.type = lookup.codes.type
            if lookup.axis is None:
                builder.op("DequantizeLinear", [codes, *lookup.scaling])
            elif lookup.axis == 1:
                builder.op("DequantizeLinear", [codes, *lookup.scaling], {"axis": -1})
            else:
                _scale_rows(builder, lookup, ids, codes, end=constant(node, [-1], names, "end"))
            replace_node(node, builder.nodes, names)
        for product in products:
            for node in product.turned:
                _turn_codes(product, node, names)
        for table in [lookup, *products]:
            output = table.node.outputs[0]
            if table.node.graph is not None and not output.uses() and not output.is_graph_output():
                table.node.graph.remove(table.node, safe=True)


def _codes(node: ir.Node) -> _Codes | None:
    codes, scale, *more = node.inputs
    zero = more[0] if more else None
    parts = [codes, scale, *([zero] if zero is not None else [])]
    if any(part is None or part.const_value is None or part.is_graph_input() for part in parts):
        return None
    assert codes is not None and scale is not None and codes.const_value is not None and scale.const_value is not None
    if codes.dtype not in _CODE_TYPES or len(codes.const_value.shape) != MATRIX or integer(node, "block_size", 0):
        return None
    axis = integer(node, "axis", 1) % MATRIX if scale.const_value.size > 1 else None
    return _Codes(node, codes, scale, zero, axis)


def _is_copy(lookup: _Codes, product: _Codes) -> bool:
    """Return whether a product holds the codes of a lookup in the order of the product: [H, V], or transposed."""
    if product.codes is lookup.codes:
        return bool(product.turned)
    scales = _array(lookup.scale), _array(product.scale)
    if lookup.axis is not None or product.axis is not None or not np.array_equal(*scales):
        return False  # see `FUSED`
    left, right = _array(lookup.codes), _array(product.codes)
    if product.turned:
        return np.array_equal(left, right)
    return left.shape == right.shape[::-1] and np.array_equal(left, right.T)


def _array(part: ir.Value) -> np.ndarray:
    assert part.const_value is not None
    return part.const_value.numpy()


def _scale_rows(builder: _Builder, lookup: _Codes, ids: ir.Value | None, codes: ir.Value, end: ir.Value) -> None:
    """Compute (code − zero point) × scale, with the scale and the zero point of each gathered row."""
    cast = {"to": int(lookup.scale.dtype or ir.DataType.FLOAT)}
    value = builder.op("Cast", [codes], cast)
    if lookup.zero is not None:
        points = builder.op("Unsqueeze", [builder.op("Gather", [lookup.zero, ids]), end])
        value = builder.op("Sub", [value, builder.op("Cast", [points], cast)])
    scales = builder.op("Unsqueeze", [builder.op("Gather", [lookup.scale, ids]), end])
    builder.op("Mul", [value, scales])


def _turn_codes(lookup: _Codes, node: ir.Node, names: Names) -> None:
    """Transpose codes, and dequantise the transposed matrix."""
    assert lookup.codes.const_value is not None
    builder = _Builder(node, names)
    turned = builder.op("Transpose", [lookup.codes], {"perm": [1, 0]})
    turned.type = lookup.codes.type
    turned.shape = ir.Shape(sides(lookup.codes.const_value.shape)[::-1])
    axis = {} if lookup.axis is None else {"axis": 1 - lookup.axis}
    builder.op("DequantizeLinear", [turned, *lookup.scaling], axis)
    replace_node(node, builder.nodes, names)
