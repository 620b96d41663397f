"""Quantise the graph of a directory with ONNX Runtime's quantisers, and list what stays float."""

from __future__ import annotations

import os
from collections.abc import Iterator
from math import prod
from pathlib import Path

import onnx
import onnx_ir as ir

from tieconv.checkpoint.files.graph_structure import MIN_ELEMENTS
from tieconv.checkpoint.value_type import record
from tieconv.errors import RefusedError
from tieconv.install import install_command
from tieconv.onnx.graph.model import sides
from tieconv.onnx.graph.packages import has_onnxruntime
from tieconv.onnx.quantise.embedding import read_blocks, read_columns
from tieconv.onnx.quantise.products import as_matmuls
from tieconv.onnx.quantise.quantise_blocks import quantise_blocks
from tieconv.onnx.quantise.quantiser_logs import quiet
from tieconv.onnx.quantise.scheme import Scheme
from tieconv.onnx.share.uses import is_standard
from tieconv.text import shown

_FLOATS = frozenset({"FLOAT", "FLOAT16", "BFLOAT16"})
_OPERATORS = {Scheme.INT4: "MatMulNBits", Scheme.INT8: "MatMulNBits", Scheme.DYNAMIC: "MatMulInteger"}
_MATRIX = 2


@record
class Quantisation:
    """The number of quantised products, the matrices that embedding and head read, and what stays float, with why."""

    products: int
    tied: tuple[str, ...]
    float_matrices: tuple[tuple[str, str], ...]

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(f"{shown(name)} stays float: {why}" for name, why in self.float_matrices)


def quantise(raw: Path, new: Path, scheme: Scheme, data: str = "model.onnx.data") -> Quantisation:
    """Read `model.onnx` of ``raw`` and write its quantised form to ``new``. No product is skipped silently.

    ``data`` is the name of the new data file.

    Raises `RefusedError` without onnxruntime, or if no product of the graph can be quantised.
    """
    if not has_onnxruntime():
        raise RefusedError("--quantise needs onnxruntime's quantiser", install_command("onnx"), "onnx.not-installed")
    os.mkdir(new)
    made = ir.load(raw / "model.onnx")
    turned = as_matmuls(made)
    if scheme is Scheme.DYNAMIC:
        made = _dynamic(made, raw)
    else:
        quantise_blocks(made, scheme.bits)
    read = read_columns if scheme is Scheme.DYNAMIC else read_blocks
    tied = tuple(codes for name, head in turned.items() if (codes := read(made, name, head)))
    _remove_unread(made)
    products = sum(node.op_type == _OPERATORS[scheme] for node in made.graph.all_nodes())
    if not products:
        raise RefusedError(
            f"ONNX Runtime's quantiser finds no product to quantise in {shown(raw.name)}",
            "export without --quantise",
            "export.quantise",
        )
    ir.save(made, new / "model.onnx", external_data=data)
    return Quantisation(products, tied, tuple(_float_matrices(made)))


def _dynamic(model: ir.Model, directory: Path) -> ir.Model:
    """Return the graph with MatMulInteger nodes. ``directory`` gets temporary files."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    plain, to = directory / "plain.onnx", directory / "dynamic.onnx"
    try:
        ir.save(model, plain, external_data=f"{plain.name}.data")
        with quiet():
            quantize_dynamic(
                plain,
                to,
                op_types_to_quantize=["MatMul"],
                weight_type=QuantType.QUInt8,
                use_external_data_format=True,
                extra_options={"MatMulConstBOnly": True},
            )
        return _model(onnx.load(str(to)))
    finally:
        for path in (plain, to):
            path.unlink(missing_ok=True)
            path.with_name(f"{path.name}.data").unlink(missing_ok=True)


def _model(proto: onnx.ModelProto) -> ir.Model:
    """Return the graph. The quantiser adds an initializer again for each node that reads it; one of each name stays."""
    once = {tensor.name: tensor for tensor in proto.graph.initializer}
    if len(once) < len(proto.graph.initializer):
        stored = list(once.values())
        del proto.graph.initializer[:]
        proto.graph.initializer.extend(stored)
    return ir.from_proto(proto)


def _remove_unread(model: ir.Model) -> None:
    for graph in model.graphs():
        for name, value in list(graph.initializers.items()):
            if not value.uses() and not value.is_graph_output() and not value.is_graph_input():
                graph.initializers.pop(name)


def _float_matrices(model: ir.Model) -> Iterator[tuple[str, str]]:
    for graph in model.graphs():
        for name, value in graph.initializers.items():
            tensor = value.const_value
            shape = () if tensor is None else sides(tensor.shape)
            if tensor is None or tensor.dtype.name not in _FLOATS or len(shape) < _MATRIX or prod(shape) < MIN_ELEMENTS:
                continue
            node = next((node for node, _ in value.uses()), None)
            if node is not None and not _is_scale(node):
                yield name, _why(node, shape)


def _is_scale(node: ir.Node) -> bool:
    """Return whether the node reads the tensor as scales of codes."""
    return node.op_type in ("MatMulNBits", "GatherBlockQuantized", "DequantizeLinear")


def _why(node: ir.Node, shape: tuple[int, ...]) -> str:
    if is_standard(node, "Gather"):
        return "it is a lookup table that no head reads"
    if len(shape) > _MATRIX:
        return f"ONNX Runtime's quantiser supports matrices, and this tensor has {len(shape)} axes"
    return f"ONNX Runtime's quantiser has no form for {node.op_type}"
