#!/usr/bin/env bash
# nncf 3.4.0: AWQ rescales a matrix that several layers share, and makes up for it in one of them alone.
#
# `compress_weights` with awq=True multiplies the input channels of a matrix by factors before it is rounded to 4 bits.
# The input of the layer is divided by the same factors, so the product stays. A matrix that layers share, as in ALBERT
# or a looped transformer, is taken once, for its first reader. The new matrix goes to all readers, and the input of the
# first alone is divided. The others compute with factors that nobody takes back. Here the model is x + relu(x up) down,
# twice. AWQ should bring the outputs nearer to those in float. With the matrices shared and no data set, the error is
# several times as large as the outputs. Nothing is raised or warned. Gated layers came out right, because there the
# factors go into the matrix before. With the ONNX backend the figures were like these. SmoothQuant of the same package
# skips shared matrices. The documentation of weight compression does not mention them for AWQ where it was searched, and
# no public issue was found; issue 4172 of nncf is about an error that SmoothQuant raises. Seen with nncf 3.4.0,
# openvino 2026.4.1 and onnx 1.23.2. The figures are the distances from the outputs in float, by their norm. In the
# last row they changed between runs, from 6.57 to 6.85 and from 0.17 to 0.20:
#   two copies: 4 bits 0.09, with AWQ 0.10, with AWQ and data 0.09
#   one matrix: 4 bits 0.09, with AWQ 6.57, with AWQ and data 0.17
# So give each layer a constant to itself before AWQ, or leave AWQ out.
set -eu
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check nncf==3.4.0 openvino==2026.4.1 onnx==1.23.2 numpy 2>/dev/null
"$work/venv/bin/python" - <<'PY' 2>/dev/null
import contextlib
import io
import logging
import sys

import nncf
import numpy as np
import onnx
import openvino as ov
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper as nh

nncf.set_log_level(logging.ERROR)
WIDTH, INNER = 64, 128
numbers = np.random.default_rng(0)
up = (numbers.standard_normal((WIDTH, INNER)) / 8).astype(np.float32)
down = (numbers.standard_normal((INNER, WIDTH)) / 11).astype(np.float32)
head = numbers.standard_normal((WIDTH, 50)).astype(np.float32)
channels = np.exp(numbers.standard_normal(WIDTH)).astype(np.float32)
batches = [channels * numbers.standard_normal((8, WIDTH)).astype(np.float32) for _ in range(8)]


def graph(shared):
    """The model in ONNX; the two layers read one pair of matrices, or a pair each."""
    nodes, matrices, state = [], {"head": head}, "x"
    for layer in range(2):
        first, second = ("up", "down") if shared else (f"up{layer}", f"down{layer}")
        matrices |= {first: up, second: down}
        nodes += [
            h.make_node("MatMul", [state, first], [f"a{layer}"], f"a{layer}"),
            h.make_node("Relu", [f"a{layer}"], [f"b{layer}"], f"b{layer}"),
            h.make_node("MatMul", [f"b{layer}", second], [f"c{layer}"], f"c{layer}"),
            h.make_node("Add", [state, f"c{layer}"], [f"d{layer}"], f"d{layer}"),
        ]
        state = f"d{layer}"
    nodes.append(h.make_node("MatMul", [state, "head"], ["y"], "y"))
    made = h.make_graph(
        nodes,
        "model",
        [h.make_tensor_value_info("x", T.FLOAT, ["rows", WIDTH])],
        [h.make_tensor_value_info("y", T.FLOAT, ["rows", 50])],
        [nh.from_array(matrix, name) for name, matrix in matrices.items()],
    )
    model = h.make_model(made, opset_imports=[h.make_opsetid("", 21)], ir_version=10)
    onnx.checker.check_model(model, full_check=True)
    return model


def openvino_model(shared):
    return ov.Core().read_model(model=graph(shared).SerializeToString())


def outputs(model):
    exact = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
    return ov.compile_model(model, "CPU", exact)(batches[0])[0]


def error(shared, **options):
    mode = nncf.CompressWeightsMode.INT4_ASYM
    with contextlib.redirect_stdout(io.StringIO()):
        model = nncf.compress_weights(openvino_model(shared), mode=mode, group_size=32, ratio=1.0, **options)
    return np.linalg.norm(outputs(model) - exact) / np.linalg.norm(exact)


exact = outputs(openvino_model(False))
assert np.allclose(exact, outputs(openvino_model(True)), atol=1e-4)
seen = []
for shared, kind in ((False, "two copies"), (True, "one matrix")):
    plain, free = error(shared), error(shared, awq=True)
    data = error(shared, awq=True, dataset=nncf.Dataset(batches))
    seen += [free / plain, data / plain]
    print(f"{kind}: 4 bits {plain:.2f}, with AWQ {free:.2f}, with AWQ and data {data:.2f}")
sys.exit(not (max(seen[:2]) < 1.25 and seen[2] > 5 and seen[3] > 1.2))
PY
