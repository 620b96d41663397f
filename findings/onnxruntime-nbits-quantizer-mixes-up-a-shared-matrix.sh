#!/usr/bin/env bash
# ONNX Runtime 1.32.0: the 4-bit quantizer gives the codes of a shared matrix the scales of another reader.
#
# `MatMulNBitsQuantizer` quantizes each MatMul by itself, and names the result after the matrix. Two readers of one matrix
# get the same names. With equal settings that is harmless. With customized_weight_config the readers may have different
# widths, such as 8 bits for the last MatMul and 4 for the others. The names of the codes have the width, those of scales
# and zero points do not. So the first reader's scales serve the other too, whose output is sixteen times too large or too
# small. Nothing is raised. Asymmetric zero points have other shapes, and the session fails at its start. The default
# algorithm with QuantFormat.QDQ gives the outputs of two nodes one name, and the session refuses the graph at equal
# settings. The same holds for a Gather and a MatMul of one matrix with op_types_to_quantize=("MatMul", "Gather"). Each
# call returns normally. Two equal matrices with different names are quantized rightly. The documentation of the class
# says nothing of it, and no public issue was found; issue 28306 of onnxruntime was about loading such a graph. Seen with
# onnxruntime 1.32.0 and onnx 1.23.2; the numbers are the errors of the two outputs, by their norm:
#   shared, RTN, 4 and 4 bits: 0.1 0.1; two equal matrices: 0.1 0.1
#   shared, RTN, 8 and 4 bits: 0.01 0.94; two equal matrices: 0.01 0.1
#   shared, RTN, 4 and 8 bits: 0.1 16.0; two equal matrices: 0.1 0.01
#   shared, RTN asymmetric, 8 and 4 bits: Fail; two equal matrices: 0.0 0.08
#   shared, default as QDQ, 4 and 4 bits: Fail; two equal matrices: 0.09 0.09
#   shared by Gather and MatMul, 4 bits: InvalidGraph; two equal matrices: 0.08 0.09
# So give each reader a matrix of its own before mixed widths, QDQ or a quantized Gather.
set -eu
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check onnxruntime==1.32.0 onnx==1.23.2 onnx-ir==1.1.0 sympy numpy 2>/dev/null
"$work/venv/bin/python" - <<'PY' 2>/dev/null
import contextlib
import io
import sys

import numpy as np
import onnxruntime as ort
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper as nh
from onnxruntime.quantization import QuantFormat
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer, RTNWeightOnlyQuantConfig

rng = np.random.default_rng(0)
matrix, x = (rng.standard_normal((64, 64)).astype(np.float32) for _ in range(2))
ids = np.arange(64)


def model(second, gather):
    """A graph with two readers, of one matrix or of two equal ones."""
    first = h.make_node("Gather", ["w1", "ids"], ["y1"], "first") if gather else h.make_node("MatMul", ["x", "w1"], ["y1"], "first")
    nodes = [first, h.make_node("MatMul", ["x", second], ["y2"], "second")]
    inputs = [h.make_tensor_value_info("x", T.FLOAT, [64, 64])]
    inputs += [h.make_tensor_value_info("ids", T.INT64, [64])] * gather
    outputs = [h.make_tensor_value_info(name, T.FLOAT, [64, 64]) for name in ("y1", "y2")]
    graph = h.make_graph(nodes, "g", inputs, outputs, [nh.from_array(matrix, name) for name in sorted({"w1", second})])
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 21), h.make_opsetid("com.microsoft", 1)], ir_version=10)


def run(graph):
    session = ort.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {node.name: x if node.name == "x" else ids for node in session.get_inputs()})


def errors(second, gather=False, **options):
    wanted = run(model(second, gather))
    with contextlib.redirect_stdout(io.StringIO()):
        quantizer = MatMulNBitsQuantizer(model(second, gather), block_size=32, **{"is_symmetric": True, **options})
        quantizer.process()
    try:
        outputs = run(quantizer.model.model)
    except Exception as error:
        return type(error).__name__
    return [round(float(np.linalg.norm(a - b) / np.linalg.norm(b)), 2) for a, b in zip(outputs, wanted)]


def widths(*bits):
    config = {name: {"bits": width} for name, width in zip(("first", "second"), bits)}
    return {"algo_config": RTNWeightOnlyQuantConfig(customized_weight_config=config)}


cases = {
    "shared, RTN, 4 and 4 bits": widths(4, 4),
    "shared, RTN, 8 and 4 bits": widths(8, 4),
    "shared, RTN, 4 and 8 bits": widths(4, 8),
    "shared, RTN asymmetric, 8 and 4 bits": {**widths(8, 4), "is_symmetric": False},
    "shared, default as QDQ, 4 and 4 bits": {"quant_format": QuantFormat.QDQ},
    "shared by Gather and MatMul, 4 bits": {"gather": True, "op_types_to_quantize": ("MatMul", "Gather")},
}
seen = []
for name, options in cases.items():
    shared, apart = errors("w1", **options), errors("w2", **options)
    shown = (" ".join(map(str, value)) if isinstance(value, list) else value for value in (shared, apart))
    print("{}: {}; two equal matrices: {}".format(name, *shown))
    seen.append((shared if isinstance(shared, str) else max(shared) < 0.2, max(apart) < 0.2))
sys.exit(seen != [(kind, True) for kind in (True, False, False, "Fail", "Fail", "InvalidGraph")])
PY
