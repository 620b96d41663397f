#!/usr/bin/env bash
# onnxslim 0.1.98: a graph that takes a batch of 1 or of 4 takes only 4 afterwards, without an option that asks for it.
#
# A head adds a table of four biases to its logits, one row for each domain. A batch of one text broadcasts: it gets
# four rows of scores. A batch of four gets one bias each. The input is declared as [batch, 16], and both run. The
# inference of shapes in onnxslim meets a symbol and a 4 in one Add. It takes them for equal, though the symbol may be
# 1. It writes the 4 for the symbol wherever it stands, in the inputs of the graph too. So a batch of 1 is refused by
# ONNX Runtime, after a step that only makes graphs smaller. The shape inference of onnx keeps the symbol. `slim`
# raises and warns nothing. Issue 30 of OnnxSlim is about dimensions of -1, and issue 127 about sizes of outputs. No
# public issue about this was found. Seen with onnxslim 0.1.98, onnx 1.23.2 and onnxruntime 1.32.0:
#   before: input ['batch', 16]; scores of a batch of 1 [4, 50], of 4 [4, 50]
#   onnx.shape_inference: input ['batch', 16]; scores of a batch of 1 [4, 50], of 4 [4, 50]
#   onnxslim: input [4, 16]; scores of a batch of 1 InvalidArgument, of 4 [4, 50]
# So compare the declared inputs of the graph before and after onnxslim.
set -eu
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check onnxslim==0.1.98 onnx==1.23.2 onnxruntime==1.32.0 numpy 2>/dev/null
"$work/venv/bin/python" - <<'PY' 2>/dev/null
import sys

import numpy as np
import onnx
import onnxruntime as ort
import onnxslim
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper as nh

WIDTH, TOKENS, BIASES = 16, 50, 4
numbers = np.random.default_rng(0)
tensors = {"head": (WIDTH, TOKENS), "biases": (BIASES, TOKENS)}
nodes = [h.make_node("MatMul", ["states", "head"], ["logits"]), h.make_node("Add", ["logits", "biases"], ["scores"])]
graph = h.make_graph(
    nodes,
    "head",
    [h.make_tensor_value_info("states", T.FLOAT, ["batch", WIDTH])],
    [h.make_tensor_value_info("scores", T.FLOAT, ["rows", TOKENS])],
    [nh.from_array(numbers.standard_normal(shape).astype(np.float32), name) for name, shape in tensors.items()],
)
model = h.make_model(graph, opset_imports=[h.make_opsetid("", 20)], ir_version=10)
onnx.checker.check_model(model, full_check=True)


def run(model, batch):
    try:
        session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        return list(session.run(None, {"states": np.ones((batch, WIDTH), np.float32)})[0].shape)
    except Exception as error:
        return type(error).__name__


def describe(model):
    dims = model.graph.input[0].type.tensor_type.shape.dim
    return [dim.dim_param or dim.dim_value for dim in dims], run(model, 1), run(model, BIASES)


seen = {
    "before": describe(model),
    "onnx.shape_inference": describe(onnx.shape_inference.infer_shapes(model, data_prop=True)),
    "onnxslim": describe(onnxslim.slim(model)),
}
for name, (shape, one, four) in seen.items():
    print(f"{name}: input {shape}; scores of a batch of 1 {one}, of 4 {four}")
free, fixed = ["batch", WIDTH], [BIASES, WIDTH]
same = free, [BIASES, TOKENS], [BIASES, TOKENS]
sys.exit([*seen.values()] != [same, same, (fixed, "InvalidArgument", [BIASES, TOKENS])])
PY
