#!/usr/bin/env bash
# ONNX Runtime 1.32.0: nodes_to_exclude does not keep a node exact when it shares an input with a quantized node.
#
# Two MatMuls read one activation, as query and key do, or one matrix too, as layers that share weights do. `m2` is in
# nodes_to_exclude. `quantize_static` puts QuantizeLinear and DequantizeLinear on the shared tensors, and rewires every
# reader, the excluded ones too. So `m2` computes in float with values that were rounded to 8 bits. The option
# DedicatedQDQPair changes nothing. `quantize_dynamic` rounds a shared matrix in the same way. Nothing says so. So the
# head of a language model stays rounded when the embedding shares its matrix. The documentation says that the nodes in
# the list "will be excluded from quantization", and no public issue was found. Seen with onnxruntime 1.32.0, onnx 1.23.2:
#   static, shared activation: m2 reads DequantizeLinear and float; as before quantization: False
#   static, shared activation and matrix: m2 reads DequantizeLinear and DequantizeLinear; as before quantization: False
#   dynamic, shared activation: m2 reads float and float; as before quantization: True
#   dynamic, shared activation and matrix: m2 reads float and DequantizeLinear; as before quantization: False
# So look at what the excluded node reads in the quantized graph.
set -eu
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check onnxruntime==1.32.0 onnx==1.23.2 sympy numpy 2>/dev/null
"$work/venv/bin/python" - "$work" <<'PY' 2>/dev/null
import sys

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper as nh
from onnxruntime.quantization import CalibrationDataReader, quantize_dynamic, quantize_static

path, quantized = f"{sys.argv[1]}/graph.onnx", f"{sys.argv[1]}/quantized.onnx"
rng = np.random.default_rng(0)
x, *matrices = (rng.standard_normal((64, 64)).astype(np.float32) for _ in range(3))


class Reader(CalibrationDataReader):
    def __init__(self):
        self.batches = iter([{"x": x}])

    def get_next(self):
        return next(self.batches, None)


def save(second):
    nodes = [h.make_node("MatMul", ["x", w], [y], name) for w, y, name in (("w1", "y1", "m1"), (second, "y2", "m2"))]
    x_info, *y_info = (h.make_tensor_value_info(name, T.FLOAT, [64, 64]) for name in ("x", "y1", "y2"))
    graph = h.make_graph(nodes, "g", [x_info], y_info, [nh.from_array(m, w) for m, w in zip(matrices, ("w1", "w2"))])
    onnx.save(h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=9), path)


def outputs(graph):
    return ort.InferenceSession(graph, providers=["CPUExecutionProvider"]).run(["y2"], {"x": x})[0]


kinds = {
    "static": lambda: quantize_static(path, quantized, Reader(), nodes_to_exclude=["m2"]),
    "dynamic": lambda: quantize_dynamic(path, quantized, nodes_to_exclude=["m2"]),
}
seen = []
for kind, quantize in kinds.items():
    for second, shared in (("w2", "activation"), ("w1", "activation and matrix")):
        save(second)
        quantize()
        nodes = onnx.load(quantized).graph.node
        producers = {name: node.op_type for node in nodes for name in node.output}
        reads = [producers.get(name, "float") for node in nodes if node.name == "m2" for name in node.input]
        same = bool(np.allclose(outputs(quantized), outputs(path), atol=1e-3))
        print(f"{kind}, shared {shared}: m2 reads {' and '.join(reads)}; as before quantization: {same}")
        seen.append((reads.count("DequantizeLinear"), same))
sys.exit(seen != [(1, False), (2, False), (0, True), (1, False)])
PY
