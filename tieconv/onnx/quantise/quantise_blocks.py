"""Quantise matrices in blocks with ONNX Runtime's MatMulNBitsQuantizer, one matrix at a time in memory."""

from __future__ import annotations

from typing import Any

import onnx
import onnx_ir as ir

from tieconv.onnx.quantise.products import is_matrix
from tieconv.onnx.quantise.quantiser_logs import quiet
from tieconv.onnx.quantise.scheme import BLOCK, INT8_ACTIVATIONS
from tieconv.onnx.share.patterns.head import MICROSOFT
from tieconv.onnx.share.patterns.interface import Names, replace
from tieconv.onnx.share.uses import is_standard


def quantise_blocks(model: ir.Model, bits: int) -> None:
    """Replace each MatMul with a stored matrix by MatMulNBits. A matrix that several read is quantised once."""
    names = Names(model)
    for graph in list(model.graphs()):
        for value in [value for value in graph.initializers.values() if is_matrix(value)]:
            nodes = [node for node, index in value.uses() if index == 1 and is_standard(node, "MatMul")]
            if not nodes:
                continue
            attributes, parts = _quantised(value, bits)
            for part in parts:
                graph.register_initializer(part)
            for node in nodes:
                replace(node, [ir.node("MatMulNBits", [node.inputs[0], *parts], attributes, domain=MICROSOFT)], names)
            model.opset_imports.setdefault(MICROSOFT, 1)


def _quantised(value: ir.Value, bits: int) -> tuple[dict[str, Any], list[ir.Value]]:
    """Return the attributes of the product with the matrix ``value``, and its codes and scales."""
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    with quiet():
        quantizer = MatMulNBitsQuantizer(
            _product(value), bits=bits, block_size=BLOCK, is_symmetric=True, accuracy_level=INT8_ACTIVATIONS
        )
        quantizer.process()
    graph = quantizer.model.model.graph
    (node,) = graph.node
    stored = {tensor.name: tensor for tensor in graph.initializer}
    attributes = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
    return attributes, [_initializer(name, stored[name]) for name in node.input[1:]]


def _product(value: ir.Value) -> onnx.ModelProto:
    """Return a graph of one product with the matrix."""
    tensor = value.const_value
    assert tensor is not None
    array, dtype, name = tensor.numpy(), tensor.dtype.value, str(value.name)
    make = onnx.helper.make_tensor_value_info
    ends = [make(end, dtype, ["rows", size]) for end, size in zip("xy", array.shape, strict=True)]
    node = onnx.helper.make_node("MatMul", ["x", name], ["y"])
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "product", ends[:1], ends[1:]))
    # In place: a graph or model that is made from a tensor copies it.
    model.graph.initializer.add(name=name, dims=array.shape, data_type=dtype, raw_data=array.tobytes())
    return model


def _initializer(name: str, proto: onnx.TensorProto) -> ir.Value:
    """Return a copy. The message itself would keep its whole model in memory, with the float matrix."""
    read = ir.serde.deserialize_tensor(proto)
    tensor = ir.Tensor(read.numpy().copy(), dtype=read.dtype, name=name)
    return ir.Value(name=name, shape=tensor.shape, type=ir.TensorType(tensor.dtype), const_value=tensor)
