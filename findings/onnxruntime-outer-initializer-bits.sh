#!/usr/bin/env bash
# ONNX Runtime 1.32.0, CPU: where an initializer is stored decides the last bits of a MatMul of one row.
#
# A MatMul in an If in an If reads a matrix of 64 x 640. Stored in the MatMul's own graph or one graph further out, the
# matrix is packed when the session starts. Stored two graphs further out it is not, and a product of one row comes from
# another kernel. Products of two rows agree. Seen with onnxruntime 1.32.0 and onnx 1.23.2 (and with 1.31.1):
#   rows 1, 1 graph out: equal     rows 2, 1 graph out: equal
#   rows 1, 2 graphs out: differ   rows 2, 2 graphs out: equal
# So a tool that moves an equal matrix of two branches to the main graph changes results.
set -eu
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check onnxruntime==1.32.0 onnx==1.23.2 numpy 2>/dev/null
"$work/venv/bin/python" - <<'PY'
import sys

import numpy as np
import onnxruntime as ort
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper as nh

matrix = np.random.default_rng(0).standard_normal((64, 640)).astype(np.float32)


def graph(level, out):
    """The graph ``level`` of 0 to 2; the innermost multiplies, and the graph ``out`` levels outside it holds the matrix."""
    held = [nh.from_array(matrix, "w")] if 2 - level == out else []
    made = [h.make_tensor_value_info(f"y{level}", T.FLOAT, None)]
    if level == 2:
        return h.make_graph([h.make_node("MatMul", ["x", "w"], ["y2"])], "g", [], made, held)
    skip = h.make_graph([h.make_node("Identity", ["x"], ["e"])], "e", [], [h.make_tensor_value_info("e", T.FLOAT, None)])
    node = h.make_node("If", ["c"], [f"y{level}"], then_branch=graph(level + 1, out), else_branch=skip)
    return h.make_graph([node], "g", [], made, held)


def outputs(out, rows):
    top = graph(0, out)
    inputs = [h.make_tensor_value_info("x", T.FLOAT, ["rows", 64]), h.make_tensor_value_info("c", T.BOOL, [])]
    main = h.make_graph(top.node, "main", inputs, top.output, top.initializer)
    model = h.make_model(main, opset_imports=[h.make_opsetid("", 17)], ir_version=9)
    options = ort.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    x = np.random.default_rng(rows).standard_normal((rows, 64)).astype(np.float32)
    return session.run(None, {"x": x, "c": np.array(True)})[0].tobytes()


seen = {(rows, out): outputs(out, rows) == outputs(0, rows) for rows in (1, 2) for out in (1, 2)}
for (rows, out), equal in seen.items():
    print(f"rows {rows}, {out} graph{'s' if out > 1 else ''} out: {'equal' if equal else 'differ'}")
sys.exit(seen != {(1, 1): True, (1, 2): False, (2, 1): True, (2, 2): True})
PY
