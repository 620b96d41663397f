"""Untie a graph: a head that reads the embedding's matrix gets a separate one, [H, V], for a MatMul."""

from __future__ import annotations

import onnx_ir as ir

from tieconv.checkpoint.files.graph_structure import MIN_ELEMENTS
from tieconv.checkpoint.value_type import record
from tieconv.checkpoint.write_plan.graph import SharedMatrix
from tieconv.onnx.graph.initializers import GraphBytes, Stored
from tieconv.onnx.graph.model import GraphFile
from tieconv.onnx.share.apply import copied, turned
from tieconv.onnx.share.patterns.head import MICROSOFT
from tieconv.onnx.share.patterns.interface import Names, replace
from tieconv.onnx.share.patterns.reshaped_gemm import remove, reshaped_gemm_of
from tieconv.onnx.share.uses import Use, describe, integer, is_standard, remove_unread, uses_of
from tieconv.sources.local.files import FileSet


def untie(file: GraphFile, files: FileSet) -> tuple[SharedMatrix, ...]:
    """Rewrite the graph in place; return what was done to each matrix that an embedding and a head read."""
    names = Names(file.model)
    matrices = []
    for stored in GraphBytes(file, files).stored(MIN_ELEMENTS):
        tied = _tied(stored)
        if tied is not None and tied.heads:
            matrices.append(_untie(file, stored, tied, names))
            file.changed = True
    return tuple(matrices)


@record
class _Tied:
    """The heads of a matrix. ``flipped``: the embedding gathers rows of the transposed matrix."""

    flipped: bool
    heads: tuple[Use, ...]


def _tied(stored: Stored) -> _Tied | None:
    if len(stored.record.shape) != 2:
        return None
    uses = list(uses_of(stored.value))
    lookups = [use for use in uses if use.node is not None and is_standard(use.node, "Gather") and use.index == 0]
    if not lookups:
        return None
    first = lookups[0]
    assert first.node is not None
    flipped = first.flipped != (integer(first.node, "axis", 0) % 2 == 1)
    return _Tied(flipped, tuple(use for use in uses if _is_head(use) and _reads_columns(use) != flipped))


def _is_head(use: Use) -> bool:
    node = use.node
    if node is None or use.index != 1:
        return False
    return is_standard(node, "MatMul", "Gemm") or (node.domain == MICROSOFT and node.op_type == "FusedMatMul")


def _reads_columns(use: Use) -> bool:
    """Return whether the node multiplies by the transpose of the stored matrix."""
    assert use.node is not None
    return use.flipped != bool(integer(use.node, "transB", 0))


def _untie(file: GraphFile, stored: Stored, tied: _Tied, names: Names) -> SharedMatrix:
    name = names.free(f"{stored.value.name}_head")
    make = copied if tied.flipped else turned
    own = make(file, stored, stored.graph, name)  # as far from the heads as the embedding's: the same kernels
    nodes = tuple(describe(use.node) for use in tied.heads)
    for use in tied.heads:
        assert use.node is not None
        _rewrite(use.node, own, names)
    remove_unread(stored.value)
    size = stored.record.nbytes
    return SharedMatrix(
        graph=file.name,
        kinds=("head",),
        initializer=str(stored.value.name),
        dropped=(name,),
        nodes=nodes,
        dtype=own.dtype.name if own.dtype else "",
        shape=stored.record.shape,
        stored_before=size,
        stored_after=2 * size,
        held_before=size,
        held_after=2 * size,
        copies_promised=2,
    )


def _rewrite(node: ir.Node, own: ir.Value, names: Names) -> None:
    """Make the head read ``own`` as stored.

    A Gemm or FusedMatMul becomes a MatMul if it computes nothing more.
    """
    if not _is_plain(node):
        node.replace_input_with(1, own)
        if "transB" in node.attributes:
            node.attributes["transB"] = ir.AttrInt64("transB", 0)
        return
    wrapped = reshaped_gemm_of(node)
    x = node.inputs[0] if wrapped is None else wrapped.x
    matmul = ir.node("MatMul", [x, own])
    if wrapped is None:
        replace(node, [matmul], names)
    else:
        replace(wrapped.last_reshape, [matmul], names)
        remove(wrapped)


def _is_plain(node: ir.Node) -> bool:
    """Return whether the node only multiplies two inputs."""
    operands = [value for value in node.inputs if value is not None]
    switches = ("transA", "transBatchA", "transBatchB")
    alpha = node.attributes.get("alpha")
    scaled = alpha is not None and alpha.as_float() != 1.0
    return len(operands) == 2 and not scaled and not any(integer(node, name, 0) for name in switches)
