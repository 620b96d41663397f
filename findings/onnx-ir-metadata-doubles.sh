#!/usr/bin/env bash
# onnx-ir 1.1.0: each load and save adds the metadata of a tensor in the graph file once more.
#
# `metadata_props` of onnx.proto are pairs with distinct keys. A graph has an initializer with one pair. `ir.load` and
# `ir.save`, with no change between, write the pair twice, then three times. The pairs of a node stay one. The
# serializer copies the message of the tensor, which has the pairs, and then appends the pairs of the object. Seen with
# onnx-ir 1.1.0 and onnx 1.23.2:
#   pairs of the tensor: [1, 2, 3, 4], of the node: [1, 1, 1, 1]
set -eu
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check onnx-ir==1.1.0 onnx==1.23.2 numpy 2>/dev/null
"$work/venv/bin/python" - "$work/graph.onnx" <<'PY'
import sys

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper as h
from onnx import numpy_helper as nh

path = sys.argv[1]
tensor = nh.from_array(np.ones(4, np.float32), "w")
node = h.make_node("Add", ["x", "w"], ["y"])
for owner in (tensor, node):
    owner.metadata_props.add(key="origin", value="a")
values = [h.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [4]) for name in "xy"]
graph = h.make_graph([node], "g", values[:1], values[1:], [tensor])
onnx.save(h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=10), path)
counts = []
for _ in range(4):
    graph = onnx.load(path).graph
    counts.append((len(graph.initializer[0].metadata_props), len(graph.node[0].metadata_props)))
    ir.save(ir.load(path), path)
tensors, nodes = (list(column) for column in zip(*counts))
print(f"pairs of the tensor: {tensors}, of the node: {nodes}")
sys.exit((tensors, nodes) != ([1, 2, 3, 4], [1, 1, 1, 1]))
PY
