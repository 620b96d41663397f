"""Make an embedding and a head of one quantised matrix read one initializer each of codes, scales and zero points."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import onnx_ir as ir

from tieconv.checkpoint.files.graph_structure import OLDEST_QUANTISED_OPSET
from tieconv.checkpoint.write_plan.graph import SharedMatrix
from tieconv.onnx.graph.model import GraphFile, opset, sides
from tieconv.onnx.share.patterns.interface import Names
from tieconv.onnx.share.quantised.block_tables import Table, heads, lookups, nbytes
from tieconv.onnx.share.quantised.dequantised import move_dequantisation
from tieconv.onnx.share.quantised.equal import difference
from tieconv.onnx.share.quantised.gathered_rows import look_up_rows
from tieconv.onnx.share.uses import describe, drop

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
    return replace(
        matrix,
        dropped=tuple(dict.fromkeys(name for answer in same for name in answer.dropped)),
        nodes=tuple(node for answer in same for node in answer.nodes),
        stored_before=matrix.stored_after + sum(answer.stored_before - answer.stored_after for answer in same),
        held_before=matrix.held_after + max(answer.held_before - answer.held_after for answer in same),
        left=next((answer.left for answer in same if answer.left), ""),
    )


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
    """Return whether both matrices have the same sides."""
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
    look_up_rows(table, head, names)
    for value in read:
        producer = None if value is None else value.producer()
        if producer is not None and producer.op_type in ("Reshape", "Identity"):
            drop(producer)
    dropped = [part for part in table.parts if all(part is not survivor for survivor in head.parts) and _removed(part)]
    assert head.codes.const_value is not None
    return SharedMatrix(
        graph=file.name,
        kinds=(QUANTISED, "folded") if folded else (QUANTISED,),
        initializer=str(head.codes.name),
        dropped=tuple(str(part.name) for part in dropped),
        nodes=(described,),
        dtype="UINT8",
        shape=sides(head.codes.const_value.shape),
        stored_before=before,
        stored_after=head.nbytes,
        held_before=before + folded,
        held_after=head.nbytes,
    )


def _declare_rows(part: ir.Value, rows: int) -> None:
    """Declare a flat initializer as a matrix with ``rows`` rows. Its bytes stay; MatMulNBits accepts both shapes."""
    tensor = part.const_value
    assert tensor is not None
    if len(tensor.shape) > 1:
        return
    shape = ir.Shape((rows, tensor.size // rows))
    if isinstance(tensor, ir.ExternalTensor):
        external = ir.ExternalTensor(
            tensor.location, tensor.offset, tensor.length, tensor.dtype, shape=shape, name=tensor.name,
            base_dir=tensor.base_dir,
        )  # fmt: skip
        part.const_value = external
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
    assert head.codes.const_value is not None
    names = f"{table.codes.name}, {head.codes.name}"
    return SharedMatrix(
        graph=file.name,
        kinds=(QUANTISED,),
        initializer=str(head.codes.name),
        dropped=(),
        nodes=(),
        dtype="UINT8",
        shape=sides(head.codes.const_value.shape),
        stored_before=size,
        stored_after=size,
        held_before=size,
        held_after=size,
        left=f"the quantised embedding and head stay two matrices: {why} ({names})",
    )
