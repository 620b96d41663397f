"""Make every node read the copy that stays, and remove the other copies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from tieconv.checkpoint.value_type import record
from tieconv.checkpoint.write_plan.graph import HeadForm
from tieconv.checkpoint.write_plan.output import Gathered
from tieconv.onnx.graph.initializers import Stored
from tieconv.onnx.graph.model import GraphFile
from tieconv.onnx.share.find import Member
from tieconv.onnx.share.patterns.head import MICROSOFT, becomes_another_node, folded, rounded
from tieconv.onnx.share.patterns.interface import Target
from tieconv.onnx.share.patterns.registry import pattern_of
from tieconv.onnx.share.surviving_copy import Choice, Read, Setting, reads_of, target_of, to_rewrite
from tieconv.onnx.share.uses import describe, is_standard, remove_unread

LEFT = "a MatMul with the matrix as its left operand"
"""A use that no form of the head changes."""


@record
class Applied:
    """What a rewrite did.

    ``survivor`` is the value that stays, ``dropped`` the removed names, and ``nodes`` the rewritten nodes. ``rounded``
    says what a session may round differently. ``form`` is the form of heads that became other nodes, or ``None``.
    """

    survivor: ir.Value
    dropped: tuple[str, ...]
    nodes: tuple[str, ...]
    rounded: str
    form: HeadForm | None


def apply(file: GraphFile, members: Sequence[Member], choice: Choice, setting: Setting) -> Applied:
    """Rewrite every use that does not read the copy that stays."""
    reads = to_rewrite(reads_of(members), choice, setting.form)
    survivor = _keeper(file, members, choice, setting, reads)
    target = target_of(choice, setting, survivor)
    nodes = tuple(describe(node) for read in reads for node in (read.use.node, *folded(read.use, target)))
    loose = rounding(members, reads, target)
    heads = any(becomes_another_node(read.use) for read in reads)
    for read in reads:
        pattern_of(read.use).rewrite(read.use, target)
    removed = [member.stored for member in members if member.stored.value is not survivor]
    for stored in (member.stored for member in members):
        remove_unread(stored.value)
    names = tuple(str(stored.value.name) for stored in removed)
    for stored in removed:
        _drop(stored)
    if setting.form is HeadForm.FUSED and reads:
        file.model.graph.opset_imports.setdefault(MICROSOFT, 1)
    return Applied(survivor, names, nodes, loose, setting.form if heads else None)


def rounding(members: Sequence[Member], reads: Sequence[Read], target: Target) -> str:
    """Return what a session may round differently after ``reads`` are rewritten; empty if every bit stays."""
    beside = next((reason for read in reads if (reason := rounded(read.use, target))), "")
    return beside or (_on_the_left(members) if any(read.use.flipped for read in reads) else "")


def _on_the_left(members: Sequence[Member]) -> str:
    """Return `LEFT` if a MatMul has the matrix as its left operand; else an empty string.

    A session fuses Transposes around such a MatMul by separate rules.
    """
    nodes = (read.use.node for read in reads_of(members) if read.use.index == 0)
    return LEFT if any(node is not None and is_standard(node, "MatMul") for node in nodes) else ""


def _drop(stored: Stored) -> None:
    value = stored.value
    assert not value.uses() and not value.is_graph_output()
    stored.graph.initializers.pop(str(value.name))


def _keeper(
    file: GraphFile, members: Sequence[Member], choice: Choice, setting: Setting, reads: Sequence[Read]
) -> ir.Value:
    if choice.keeper is None:
        return turned(file, choice.source, setting.home, setting.names.free(f"{choice.source.value.name}_transposed"))
    stored = choice.keeper
    if stored.graph is not setting.home and any(m.stored.graph is not stored.graph for m in members):
        _lift(stored, setting, file.model)
    return stored.value


def _lift(stored: Stored, setting: Setting, model: ir.Model) -> None:
    """Move the initializer to the graph that every node which reads it can see."""
    value = stored.value
    stored.graph.initializers.pop(str(value.name))
    if _named(model)[value.name] > 0:
        value.name = setting.names.free(str(value.name))
    setting.home.register_initializer(value)


def _named(model: ir.Model) -> Counter[str | None]:
    """Return how many values have each name."""
    counts: Counter[str | None] = Counter()
    for graph in model.graphs():
        counts.update(value.name for value in (*graph.inputs, *graph.initializers.values()))
        counts.update(value.name for node in graph for value in node.outputs)
    return counts


def turned(file: GraphFile, stored: Stored, graph: ir.Graph, name: str) -> ir.Value:
    """Return a new initializer of ``graph``: the transposed matrix, whose bytes are gathered at the write."""
    rows, columns = stored.record.shape
    return _made(file, stored, graph, name, (columns, rows), (1, columns))


def copied(file: GraphFile, stored: Stored, graph: ir.Graph, name: str) -> ir.Value:
    """Return a new initializer of ``graph`` with the bytes of the stored matrix."""
    rows, columns = stored.record.shape
    return _made(file, stored, graph, name, (rows, columns), (columns, 1))


def _made(
    file: GraphFile, stored: Stored, graph: ir.Graph, name: str, shape: tuple[int, int], stride: tuple[int, int]
) -> ir.Value:
    tensor = stored.value.const_value
    assert tensor is not None
    made: ir.TensorProtocol
    if isinstance(tensor, ir.ExternalTensor):
        content = Gathered(stored.record.range, stored.record.dtype, shape, stride)
        made = file.make(content, tensor, shape, name)
    else:
        array = tensor.numpy()
        made = ir.Tensor(np.ascontiguousarray(array if stride[1] == 1 else array.T), dtype=tensor.dtype, name=name)
    value = ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(tensor.dtype))
    value.const_value = made
    graph.register_initializer(value)
    return value
