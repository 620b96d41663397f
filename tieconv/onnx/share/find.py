"""Find matrices that a graph holds more than once, by their content and never by a name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from math import isfinite, prod

import numpy as np
import onnx_ir as ir

from tieconv.checkpoint.inspection import State
from tieconv.checkpoint.model_files import ByteReader
from tieconv.checkpoint.value_type import record
from tieconv.checkpoint.weight_file import FLOATS, TensorRecord
from tieconv.inspection.duplicates import find_duplicates
from tieconv.inspection.equality import relate_cast
from tieconv.inspection.numeric.bits import FORMATS, Pair, is_nan
from tieconv.inspection.view_reader import one_way, readable
from tieconv.onnx.graph_model import Stored


@record
class Member:
    """One stored copy. ``flipped``: it is the transpose of the group's first member."""

    stored: Stored
    flipped: bool


@record
class Group:
    """Stored tensors with the same values; ``kinds`` are the relations that were proved between them."""

    members: tuple[Member, ...]
    kinds: tuple[str, ...]


def by_rows(stored: Stored) -> Stored:
    """Return codes of a quantised matrix with two sides, so that they are compared in whatever shape they are stored.

    Other tensors are returned unchanged.
    """
    shape = stored.record.shape
    if stored.record.dtype != "U8" or len(shape) <= MATRIX:
        return stored
    flat = replace(stored.record, shape=(shape[0], prod(shape[1:])))
    return Stored(stored.value, stored.graph, flat)


@record
class _Link:
    left: str
    right: str
    flipped: bool
    kind: str


def find_groups(reader: ByteReader, stored: Sequence[Stored]) -> list[Group]:
    """Return groups of at least two tensors that are equal in every byte.

    A cast counts only if it is exact in both directions.
    """
    by_name = {entry.record.name: entry for entry in stored}
    records = [entry.record for entry in stored]
    joined: list[_Joined] = []
    for link in _links(reader, records):
        _join(joined, link)
    groups = []
    for flipped, kinds in joined:
        names = sorted(flipped, key=lambda name: int(name.split(":", 1)[0]))  # in the order of the graph
        members = tuple(Member(by_name[name], flipped[name] != flipped[names[0]]) for name in names)
        groups.append(Group(members, tuple(sorted(kinds))))
    return groups


_Joined = tuple[dict[str, bool], set[str]]
"""The names of equal tensors with their orientation, and the relations between them."""


def _join(groups: list[_Joined], link: _Link) -> None:
    first = next((group for group in groups if link.left in group[0]), None)
    second = next((group for group in groups if link.right in group[0]), None)
    if first is None:
        first = {link.left: False}, set()
        groups.append(first)
    names, kinds = first
    kinds.add(link.kind)
    turn = names[link.left] != link.flipped
    if second is None:
        names[link.right] = turn
    elif second is not first:
        turn = turn != second[0][link.right]
        names.update({name: flipped != turn for name, flipped in second[0].items()})
        kinds |= second[1]
        groups[:] = [group for group in groups if group is not second]


def _links(reader: ByteReader, records: list[TensorRecord]) -> Iterator[_Link]:
    by_name = {record.name: record for record in records}
    leaders = set(by_name)
    for duplicate in find_duplicates(reader, records):
        first, *rest = duplicate.tensors
        if duplicate.kind is State.CAST:
            continue
        if duplicate.kind is State.TRANSPOSED and 1 in by_name[first].shape:
            continue
        for name in rest:
            yield _Link(first, name, duplicate.kind is State.TRANSPOSED, _KINDS[duplicate.kind])
            leaders.discard(name)
    yield from _casts(reader, [record for record in records if record.name in leaders])


_KINDS = {State.IDENTICAL: "identical", State.ALIASED: "identical", State.TRANSPOSED: "transposed"}


def _casts(reader: ByteReader, records: list[TensorRecord]) -> Iterator[_Link]:
    """Yield float matrices of two types that are exact casts of each other, also transposed."""
    floats = [record for record in records if record.dtype in FLOATS and len(record.shape) == 2]
    for left, right in combinations(floats, 2):
        if left.dtype == right.dtype:
            continue
        if left.shape == right.shape and _exact_cast(reader, left, right):
            yield _Link(left.name, right.name, False, "cast")
        elif left.shape == right.shape[::-1] and _exact_cast(reader, *one_way(left, right)):
            yield _Link(left.name, right.name, True, "cast")


def _exact_cast(reader: ByteReader, left: TensorRecord, right: TensorRecord) -> bool:
    reader, (left, right) = readable(reader, (left, right))
    relation = relate_cast(reader, left, right)
    if relation is None or not relation.lossless:
        return False
    # A runtime's Cast may change the payload of a NaN.
    return not any(is_nan(block, FORMATS[left.dtype]).any() for block, _ in Pair(reader, left, right).pieces())


# Find the nodes that read an initializer, also through Transpose and Identity nodes.

MATRIX = 2
SMALL = 8
"""Most elements of a constant that counts as a shape or a number, not as a tensor."""


@record
class Use:
    """Input ``index`` of ``node`` reads the matrix. ``flipped``: it reads the transpose.

    ``node`` is ``None`` if the matrix itself is an output of the graph. ``dtype`` is the type that the node reads; the
    graph may not declare the type behind a Transpose.
    """

    node: ir.Node | None
    index: int
    flipped: bool
    dtype: ir.DataType | None = None


def is_standard(node: ir.Node, *names: str) -> bool:
    """Return whether the node is one of the standard operators ``names``."""
    return node.domain in ("", "ai.onnx") and node.op_type in names


def uses_of(value: ir.Value, *, flipped: bool = False, dtype: ir.DataType | None = None) -> Iterator[Use]:
    """Yield the nodes that compute with the value, of type ``dtype``, also through Transpose and Identity."""
    dtype = dtype or value.dtype
    if value.is_graph_output():
        yield Use(None, 0, flipped, dtype)
    for node, index in tuple(value.uses()):
        if _passes_on(node):
            yield from uses_of(node.outputs[0], flipped=flipped != is_standard(node, "Transpose"), dtype=dtype)
        else:
            yield Use(node, index, flipped, dtype)


def _passes_on(node: ir.Node) -> bool:
    if is_standard(node, "Identity"):
        return True
    perm = node.attributes.get("perm")
    return is_standard(node, "Transpose") and (perm is None or list(perm.as_ints()) == [1, 0])


def remove_unread(value: ir.Value) -> None:
    """Remove the Transpose and Identity nodes behind the value that no other node reads."""
    for node, _ in tuple(value.uses()):
        if _passes_on(node) and node.graph is not None:
            remove_unread(node.outputs[0])
            if not node.outputs[0].uses() and not node.outputs[0].is_graph_output():
                node.graph.remove(node, safe=True)


def drop(node: ir.Node) -> None:
    """Remove a node that no other node reads, and the constants and shapes that only it read."""
    if node.graph is None or any(value.uses() or value.is_graph_output() for value in node.outputs):
        return
    inputs = [value for value in node.inputs if value is not None]
    node.graph.remove(node, safe=True)
    for value in inputs:
        drop_unread(value)


def drop_unread(value: ir.Value) -> None:
    """Remove a small constant or the nodes of a shape if nothing reads them. A matrix is never removed."""
    if value.uses() or value.is_graph_output() or value.is_graph_input():
        return
    producer = value.producer()
    if producer is not None:
        if is_standard(producer, "Constant", "Concat", "Slice", "Shape", "Reshape"):
            drop(producer)
    elif value.is_initializer() and isinstance(value.graph, ir.Graph):
        tensor = value.const_value
        if tensor is not None and tensor.size <= SMALL:
            value.graph.initializers.pop(str(value.name))


def integer(node: ir.Node, name: str, default: int) -> int:
    """Return an integer attribute."""
    attribute = node.attributes.get(name)
    return default if attribute is None else attribute.as_int()


def describe(node: ir.Node | None) -> str:
    """Return the node as a phrase for a report."""
    if node is None:
        return "the graph, as an output"
    return f"{node.op_type} {node.name or node.outputs[0].name}"


# Find neighbours of a Gemm that a session may round differently: factors that stay nodes, and F16 on the CPU.

_PLAIN = ("Add", "Sub", "Mul", "Div", "Tanh", "Cast")
"""Operators without an F16 kernel in ONNX Runtime's CPU provider, which computes them in F32."""

FUSED_F64 = " in F64 (fused by 1.31.1, not by 1.32.0)"
"""Which measured releases of ONNX Runtime fuse a factor into a MatMul of F64."""

_HALF = {ir.DataType.FLOAT16, ir.DataType.UNDEFINED}
"""F16, or a type that the graph does not declare and that may be F16."""


def beside(node: ir.Node, dtype: ir.DataType) -> str:
    """Return what a session may round differently next to a head between Reshapes; empty if nothing.

    A factor that the Gemm cannot include is no longer fused by the session. That is a factor that may not be one
    number, or a factor in F64. ONNX Runtime 1.32.0 never fuses a factor in F64.

    The CPU provider computes F16 in F32 and skips the rounding between two nodes without an F16 kernel
    (insert_cast_transformer.cc). It also computes a node with an F16 kernel in F32 if no neighbour has such a kernel.
    The Reshapes are such neighbours.
    """
    surroundings = around(node, dtype)
    final = (node, *surroundings.behind)[-1]
    maker, reader = surroundings.x.producer(), only_user(final)
    first, after = made_by(maker), read_by(reader, dtype)
    reason = _factor(made_by(first, undeclared=True), after) or _across_casts(first, after, dtype)
    if reason and dtype is ir.DataType.DOUBLE:
        return reason + FUSED_F64
    if reason or dtype is not ir.DataType.FLOAT16:
        return reason
    if len(surroundings.before) + len(surroundings.behind) > 1:
        return "several factors"
    if _reads_again(node, (*surroundings.before, *surroundings.behind)):
        return "a factor that another node reads too"
    if surroundings.rank == MATRIX:
        return ""
    if maker is not None and (maker is not first or not is_standard(maker, *_PLAIN)) and not _looks_up(maker):
        return describe(maker)
    if after is not None and after is not reader and is_standard(after, "Cast"):
        return describe(after)
    readers = list(_readers(final.outputs[0], dtype))
    if len(readers) != 1:
        return f"a product with {len(readers)} readers"
    return next((describe(user) for user in readers if user is not None and not is_standard(user, *_PLAIN)), "")


def _factor(*nodes: ir.Node | None) -> str:
    """Return the product or quotient by what may be one number. A session fuses it into a MatMul."""
    for node in nodes:
        if node is not None and is_standard(node, "Mul", "Div"):
            places = (1,) if node.op_type == "Div" else (0, 1)
            if any(_may_be_number(node.inputs[index]) for index in places):
                return describe(node)
    return ""


def _may_be_number(value: ir.Value | None) -> bool:
    """Return whether a session may see one number here: a constant of one element, or folded constants."""
    if value is None or value.is_graph_input():
        return False
    tensor = ir.convenience.get_const_tensor(value)
    if tensor is not None:
        return tensor.size == 1
    sides = None if value.shape is None else [side for side in value.shape if side != 1]
    return not sides and not _depends_on_inputs(value)


def _depends_on_inputs(value: ir.Value) -> bool:
    """Return whether the value is computed from an input of the graph or of a branch of it."""
    pending, seen = [value], set[ir.Value]()
    for value in pending:
        if value not in seen and ir.convenience.get_const_tensor(value) is None:
            seen.add(value)
            if (maker := value.producer()) is None:
                return True
            pending += [operand for operand in maker.inputs if operand is not None]
    return False


def _reads_again(head: ir.Node, factors: Sequence[ir.Node]) -> bool:
    """Return whether another node reads the number of a factor.

    A session then shares and casts the constant, and fuses neither node.
    """
    own = {number for node in factors for number in _numbers(node)}
    others = (node for node in head.graph or () if node not in factors) if own else ()
    return any(number in own for node in others for number in _numbers(node))


def _numbers(node: ir.Node) -> Iterator[float]:
    """Yield the single F16 numbers that a node reads as constants."""
    for value in node.inputs:
        tensor = None if value is None else ir.convenience.get_const_tensor(value)
        if tensor is not None and tensor.size == 1 and tensor.dtype is ir.DataType.FLOAT16:
            yield float(tensor.numpy().reshape(-1)[0])


def _across_casts(before: ir.Node | None, behind: ir.Node | None, dtype: ir.DataType) -> str:
    """Return what a head meets across a Cast from or to F16; empty if nothing.

    That is a factor that the session fuses, a node with an F16 kernel, or two further Casts.
    """
    for cast, dtype_beside in ((before, cast_from(before)), (behind, cast_to(behind))):
        if cast is None or dtype_beside is None or not {dtype, dtype_beside} & _HALF:
            continue
        x = cast.inputs[0]
        inner = [x.producer()] if cast is before and x is not None else _readers(cast.outputs[0], cast_to(cast))
        for node in inner:
            if node is None or _looks_up(node):
                continue
            if not is_standard(node, *_PLAIN) or scale(node, np.float32(1)) is not None:
                return describe(node)
            if cast is behind and _casts_again(node):
                return describe(node)
    return ""


def _casts_again(node: ir.Node) -> bool:
    """Return whether ``node`` and a reader of it are Casts. A session merges three Casts in a row behind a MatMul."""
    if not is_standard(node, "Cast"):
        return False
    return any(user is not None and is_standard(user, "Cast") for user in _readers(node.outputs[0], cast_to(node)))


def _readers(value: ir.Value, dtype: ir.DataType | None) -> Iterator[ir.Node | None]:
    """Yield the nodes that read a value of type ``dtype``, across nodes that change nothing.

    ``None`` means an output of the graph.
    """
    if value.is_graph_output():
        yield None
    for user, _ in value.uses():
        if unchanged(user, dtype) is not None:
            yield from _readers(user.outputs[0], dtype)
        else:
            yield user


def _looks_up(node: ir.Node) -> bool:
    table = node.inputs[0] if is_standard(node, "Gather") else None
    return table is not None and table.is_initializer()


# Find nodes that a session of ONNX Runtime removes before it fuses others.
#
# These are identity, no-op, Cast and Dropout elimination.


def made_by(node: ir.Node | None, *, undeclared: bool = False) -> ir.Node | None:
    """Return the node that computes a value in a session: ``node``, or an earlier one if ``node`` changes nothing.

    With ``undeclared``, a Cast from an undeclared type also counts as a node that changes nothing.
    """
    while node is not None:
        maybe = undeclared and cast_from(node) is ir.DataType.UNDEFINED
        value = node.inputs[0] if maybe else unchanged(node, cast_from(node))
        if value is None:
            break
        node = value.producer()
    return node


def read_by(node: ir.Node | None, dtype: ir.DataType) -> ir.Node | None:
    """Return the node that reads a value in a session: ``node``, or a later one if ``node`` changes nothing.

    ``dtype`` is the type of the value.
    """
    while node is not None and unchanged(node, dtype) is not None:
        node = only_user(node)
    return node


def unchanged(node: ir.Node, dtype: ir.DataType | None) -> ir.Value | None:
    """Return the value that a node passes on unchanged, or ``None`` if the node computes something.

    A session removes such nodes before it fuses others. ``dtype`` is the type that a Cast reads.
    """
    if is_standard(node, "Identity", "Dropout") or (is_standard(node, "Cast") and cast_to(node) is dtype):
        return node.inputs[0]
    if is_standard(node, "Add", "Sub"):
        places = (1,) if node.op_type == "Sub" else (1, 0)
        return next((node.inputs[1 - position] for position in places if _is_zero(node.inputs[position])), None)
    return None


def _is_zero(value: ir.Value | None) -> bool:
    tensor = None if value is None or value.is_graph_input() else ir.convenience.get_const_tensor(value)
    return tensor is not None and tensor.size == 1 and not tensor.numpy().any()


def cast_from(cast: ir.Node | None) -> ir.DataType | None:
    """Return the type that a Cast reads."""
    value = cast.inputs[0] if cast is not None and is_standard(cast, "Cast") else None
    return None if value is None else value.dtype or ir.DataType.UNDEFINED


def cast_to(cast: ir.Node | None) -> ir.DataType | None:
    """Return the type that a Cast returns."""
    return ir.DataType(integer(cast, "to", 0)) if cast is not None and is_standard(cast, "Cast") else None


# Match the scale factors and casts next to a head. They are rewritten with it, so that no bit changes.
#
# ONNX Runtime fuses a constant factor before or after a MatMul into it (`FusedMatMul(alpha)`,
# matmul_scale_fusion.cc). It also removes two casts in a row. It does neither across the Reshapes around a Gemm. So the
# factor becomes the Gemm's ``alpha``, and the casts swap with the Reshapes.


@record
class Around:
    """The product of ``x`` and ``alpha``, computed by the nodes from ``before`` to ``behind``.

    ``rank`` is the number of axes of ``x``, or ``None`` if it is unknown. ``narrow`` and ``widen`` are the casts
    directly before and after these nodes.
    """

    x: ir.Value
    rank: int | None
    alpha: float
    before: tuple[ir.Node, ...]
    behind: tuple[ir.Node, ...]
    narrow: ir.Node | None
    widen: ir.Node | None

    @property
    def nodes(self) -> tuple[ir.Node, ...]:
        """The nodes that are rewritten with the product, first to last."""
        casts = [[] if node is None else [node] for node in (self.narrow, self.widen)]
        return (*casts[0], *self.before, *self.behind, *casts[1])


def around(node: ir.Node, dtype: ir.DataType) -> Around:
    """Return what surrounds a MatMul whose right operand is a matrix. ``dtype`` is the type of the MatMul."""
    x, final, alpha = node.inputs[0], node, np.float32(1)
    before: list[ir.Node] = []
    behind: list[ir.Node] = []
    assert x is not None
    # Go outwards as the session does: the order of the factors changes the last bit of their product.
    # A factor of one is skipped, because the session has already removed its node.
    # An alpha, an F32 number, represents factors of these types exactly.
    while dtype in (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16):
        matched, turn = len(before) + len(behind), alpha
        while alpha == turn and (first := scale(_maker(x, node), alpha)) is not None:
            x, alpha = first.of, first.alpha
            before.insert(0, first.node)
        turn = alpha
        while alpha == turn and (after := scale(only_user(final), alpha)) is not None:
            final, alpha = after.node, after.alpha
            behind.append(after.node)
        if len(before) + len(behind) == matched:
            break
    narrow, widen = _cast(_maker(x, node)), _cast(only_user(final))
    rank = rank_of(x) or (rank_of(narrow.inputs[0]) if narrow is not None else None)
    if dtype is ir.DataType.FLOAT or rank == MATRIX:  # there are no Reshapes, or the casts need not move
        narrow = widen = None
    return Around(x, rank, float(alpha), tuple(before), tuple(behind), narrow, widen)


@record
class _Scale:
    """A factor. ``node`` multiplies ``of`` by a constant number; ``alpha`` is that number times the earlier ones."""

    node: ir.Node
    of: ir.Value
    alpha: np.float32


def scale(node: ir.Node | None, alpha: np.float32) -> _Scale | None:
    """Return the product or quotient with one constant number that ``alpha`` can include, or ``None``."""
    if node is None or not is_standard(node, "Mul", "Div"):
        return None
    for index in (1,) if node.op_type == "Div" else (0, 1):
        factor = node.inputs[1 - index]
        number = _number(node.inputs[index], factor)
        if number is not None and factor is not None:
            with np.errstate(all="ignore"):
                whole = alpha * (np.float32(1) / number if node.op_type == "Div" else number)
            return _Scale(node, factor, whole) if whole and isfinite(whole) else None
    return None


def _number(value: ir.Value | None, product: ir.Value | None) -> np.float32 | None:
    """Return the one number that a constant holds, if multiplying ``product`` by it adds no axis."""
    tensor = None if value is None or value.is_graph_input() else ir.convenience.get_const_tensor(value)
    if tensor is None or tensor.size != 1:
        return None
    rank = max(1, rank_of(product) or 1)
    return np.float32(tensor.numpy().reshape(-1)[0]) if len(tensor.shape) <= rank else None


def rank_of(value: ir.Value | None) -> int | None:
    """Return the number of axes of a value, ``None`` if it is unknown."""
    return None if value is None or value.shape is None else len(value.shape)


def _maker(value: ir.Value, node: ir.Node) -> ir.Node | None:
    """Return the node that computes the value, if it is in the same graph."""
    maker = value.producer()
    return maker if maker is not None and maker.graph is node.graph else None


def only_user(node: ir.Node) -> ir.Node | None:
    """Return the only node that reads what ``node`` computes, if it is in the same graph."""
    uses = list(node.outputs[0].uses())
    if len(uses) != 1 or node.outputs[0].is_graph_output():
        return None
    return uses[0][0] if uses[0][0].graph is node.graph else None


def _cast(node: ir.Node | None) -> ir.Node | None:
    return node if node is not None and is_standard(node, "Cast") else None
