"""Let a range of positions start at the length of the cache. No pass then copies that length to a device.

transformers computes ``arange(sequence) + past_length``. ONNX Runtime computes the length on the CPU and the sum on
the device. So each pass waits for a copy, and no CUDA graph can be captured.
``arange(past_length, past_length + sequence)`` has the same values. Its operator reads its bounds on the CPU.
"""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass


def start_ranges(model: ir.Model) -> int:
    """Replace each sum of a range and a scalar by a range that starts at the scalar. Return how many were replaced."""
    graph = model.graph
    replaced = 0
    for node in list(graph):
        summands = _summands(node)
        if summands is None:
            continue
        counted, start = summands
        bound = ir.node("Add", [start, counted.inputs[1]], name=f"{node.name}.end")
        ranged = ir.node("Range", [start, bound.outputs[0], counted.inputs[2]], name=f"{node.name}.range")
        output, made = node.outputs[0], ranged.outputs[0]
        bound.outputs[0].type, bound.outputs[0].shape = output.type, ir.Shape([])
        made.type, made.shape = output.type, output.shape
        graph.insert_before(node, [bound, ranged])
        output.replace_all_uses_with(made)
        made.name, bound.outputs[0].name = f"{output.name}.range", f"{output.name}.end"
        graph.remove(node, safe=True)
        replaced += 1
    if replaced:
        RemoveUnusedNodesPass()(model)
    return replaced


def _summands(node: ir.Node) -> tuple[ir.Node, ir.Value] | None:
    """Return the node of the range and the scalar of a sum of these two, or ``None``."""
    if (node.op_type, node.domain) != ("Add", "") or node.outputs[0].is_graph_output():
        return None
    for counted, start in (node.inputs, tuple(reversed(node.inputs))):
        range_node = counted.producer() if counted is not None else None
        if counted is None or start is None or range_node is None:
            continue
        if (range_node.op_type, range_node.domain) != ("Range", ""):
            continue
        first, _, step = range_node.inputs
        integers = start.type == counted.type == ir.TensorType(ir.DataType.INT64)  # floats would round differently
        scalar = start.shape is not None and len(start.shape) == 0
        if integers and scalar and start.const_value is None and _holds(first, 0) and _holds(step, 1):
            return range_node, start
    return None


def _holds(value: ir.Value | None, number: int) -> bool:
    constant = ir.convenience.get_const_tensor(value) if value is not None else None
    return constant is not None and constant.size == 1 and int(constant.numpy().item()) == number
