"""Codes that an embedding and a head dequantise: one matrix, held once, and every output keeps its bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tieconv as api
from tests.onnx.sessions import SHAPES, outputs, same_bits

V, H = 96, 32


def build(path: Path, kind: str, *, per_row: bool, zeros: bool = True, changed: bool = False) -> Path:
    """An embedding and a head on int8 codes. ``kind`` says how the head reads them, ``per_row`` how they are scaled."""
    rng = np.random.default_rng(0)
    codes = rng.integers(-127, 127, (V, H), np.int8)
    stored = {
        "W": codes,
        "S": rng.random(V).astype("f4") + 0.1 if per_row else np.array(0.01, "f4"),
        "Z": rng.integers(-9, 9, V, np.int8) if per_row else np.array(3, np.int8),
    }
    other = codes.copy()
    other[0, 0] += changed
    parts, axis = ["S", "Z"] if zeros else ["S"], {"axis": 0} if per_row else {}
    nodes = [
        helper.make_node("DequantizeLinear", ["W", *parts], ["F"], **axis),
        helper.make_node("Gather", ["F", "input_ids"], ["x"]),
    ]
    if kind == "rows":
        nodes = [
            helper.make_node("Gather", ["W", "input_ids"], ["rows"]),
            helper.make_node("DequantizeLinear", ["rows", *parts], ["x"]),
        ]
    turned = kind in ("turned", "rows")
    if kind != "shared":
        stored["W2"] = other.T.copy() if turned else other
        more = {"axis": 1 if turned else 0} if per_row else {}
        nodes.append(helper.make_node("DequantizeLinear", ["W2", *parts], ["F2"], **more))
    matrix = "F" if kind == "shared" else "F2"
    if kind == "gemm":
        stored |= {"flat": np.array([-1, H]), "whole": np.array([0, -1, V])}
        nodes += [
            helper.make_node("Reshape", ["x", "flat"], ["x2"]),
            helper.make_node("Gemm", ["x2", matrix], ["y2"], transB=1),
            helper.make_node("Shape", ["input_ids"], ["ids"]),
            helper.make_node("Concat", ["ids", "tokens"], ["sides"], axis=0),
            helper.make_node("Reshape", ["y2", "sides"], ["logits"], allowzero=1),
        ]
        stored["tokens"] = np.array([V])
    else:
        if not turned:
            nodes.append(helper.make_node("Transpose", [matrix], ["T"], perm=[1, 0]))
        nodes.append(helper.make_node("MatMul", ["x", matrix if turned else "T"], ["logits"]))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["b", "s"])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["b", "s", V])],
        [numpy_helper.from_array(array, name) for name, array in stored.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    return path


SHARED = [("shared", False), ("shared", True), ("two", False), ("turned", False), ("rows", False), ("gemm", False),
          ("gemm", True)]  # fmt: skip


@pytest.mark.parametrize("zeros", [True, False])
@pytest.mark.parametrize(("kind", "per_row"), SHARED)
def test_one_matrix_of_codes(tmp_path: Path, kind: str, per_row: bool, zeros: bool) -> None:
    """A session of the source holds two; of the result one, proved. One scale for all rows, or one for each."""
    source = build(tmp_path / "model.onnx", kind, per_row=per_row, zeros=zeros)
    outcome = api.plan_graph_dedup(source).execute(tmp_path / "out.onnx")
    (matrix,) = outcome.plan.matrices
    assert matrix.done and not matrix.left
    assert outcome.proofs[0].copies == ((matrix.initializer, 1),)
    for seed, shape in enumerate(SHAPES):
        before, after = (outputs(path, shape, V, seed=seed) for path in (source, tmp_path / "out.onnx"))
        assert same_bits(before, after), shape
    assert not any(matrix.done for matrix in api.plan_graph_dedup(tmp_path / "out.onnx").plan.matrices)


@pytest.mark.parametrize("kind", ["two", "turned"])
def test_a_fused_product_stays(tmp_path: Path, kind: str) -> None:
    """A session fuses a MatMul with codes of several scales. Shared codes are not fused and would round differently."""
    source = build(tmp_path / "model.onnx", kind, per_row=True)
    outcome = api.plan_graph_dedup(source).execute(tmp_path / "out.onnx")
    (matrix,) = outcome.plan.matrices
    assert not matrix.done and "fuses a MatMul with the DequantizeLinear" in matrix.left
    before, after = (outputs(path, (2, 7), V) for path in (source, tmp_path / "out.onnx"))
    assert same_bits(before, after)


@pytest.mark.parametrize("kind", ["two", "turned", "gemm"])
def test_other_codes_stay(tmp_path: Path, kind: str) -> None:
    """One code differs: nothing is shared, and nothing is rewritten."""
    source = build(tmp_path / "model.onnx", kind, per_row=False, changed=True)
    operators = [node.op_type for node in onnx.load(source).graph.node]
    assert not api.plan_graph_dedup(source).execute(tmp_path / "out.onnx").plan.matrices
    assert [node.op_type for node in onnx.load(tmp_path / "out.onnx").graph.node] == operators
