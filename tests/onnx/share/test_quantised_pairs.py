"""Quantised and dequantised pairs: one matrix, held once, and every output keeps its bits."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

import tieconv as api
from tests.onnx.graphs import SHAPES, outputs, same_bits, tensors
from tests.onnx.nodes import model, op, save, token_ids, value
from tieconv.errors import StalePlanError

V, BLOCK = 96, 32


@dataclass(frozen=True)
class Pair:
    """How a quantised embedding and head are stored; ``changed`` alters the last byte of tensors."""

    bits: int = 4
    blocks: int = 4
    zeros: bool = False
    flat: bool = False
    reshaped: bool = False
    half: bool = False
    external: bool = False
    opset: int = 21
    accuracy: int = 0
    changed: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    attributes: dict[str, int] = field(default_factory=dict)


def build(path: Path, pair: Pair) -> Path:
    """Write a graph: GatherBlockQuantized, then MatMulNBits of the same random matrix."""
    rng = np.random.default_rng(7)
    dtype, width = np.float16 if pair.half else np.float32, pair.blocks * BLOCK
    codes = rng.integers(0, 256, (V, pair.blocks, BLOCK * pair.bits // 8), np.uint8)
    scales = rng.standard_normal((V, pair.blocks)).astype(dtype)
    zeros = rng.integers(0, 256, (V, (pair.blocks * pair.bits + 7) // 8), np.uint8)
    stored = {
        "embed": codes.reshape(V, -1).copy(), "embed_scales": scales.copy(), "embed_zeros": zeros.copy(),
        "head": codes, "head_scales": scales.reshape(-1) if pair.flat else scales,
        "head_zeros": zeros.reshape(-1) if pair.flat else zeros,
    }  # fmt: skip
    for name in pair.changed:
        stored[name].reshape(-1)[-1] += 1
    form = {"bits": pair.bits, "block_size": BLOCK, "domain": "com.microsoft"}
    names = {side: [side, f"{side}_scales", *([f"{side}_zeros"] if pair.zeros else [])] for side in ("embed", "head")}
    nodes = []
    if pair.reshaped:
        names["embed"] = ["rows", *names["head"][1:]]
        stored["two"] = np.array([V, codes.size // V])
        nodes.append(op("Reshape", "head two", "rows"))
    names = {side: [name for name in parts if name not in pair.without] for side, parts in names.items()}
    lookup, head = " ".join(names["embed"]).replace(" ", " input_ids ", 1), " ".join(["x", *names["head"]])
    axes = {"gather_axis": 0, "quantize_axis": 1}
    nodes.append(op("GatherBlockQuantized", lookup, "x", name="embedding", **axes, **form | pair.attributes))
    nodes.append(op("MatMulNBits", head, "logits", K=width, N=V, accuracy_level=pair.accuracy, **form))
    used = {name: stored[name] for node in nodes for name in node.input if name in stored}
    logits = value("logits", ["b", "s", V], TensorProto.FLOAT16 if pair.half else TensorProto.FLOAT)
    return save(model(nodes, [token_ids()], [logits], used, opset=pair.opset), path, external=pair.external)


SHARED = {
    "int4": Pair(),
    "int4, zero points": Pair(zeros=True),
    "int4, zero points, odd blocks": Pair(zeros=True, blocks=3),
    "int4, one block": Pair(zeros=True, blocks=1),
    "int4, flat scales": Pair(flat=True),
    "int4, flat scales and zero points": Pair(flat=True, zeros=True, external=True),
    "int4, one file region": Pair(reshaped=True),
    "int4, one file region, zero points": Pair(reshaped=True, zeros=True),
    "int4, external": Pair(external=True),
    "int4, int8 activations": Pair(accuracy=4),
    "int4, half": Pair(half=True),
    "int4, half, zero points": Pair(half=True, zeros=True),
    "int8": Pair(bits=8),
    "int8, zero points": Pair(bits=8, zeros=True),
    "int8, zero points, odd blocks": Pair(bits=8, zeros=True, blocks=3, reshaped=True),
}


@pytest.mark.parametrize("name", SHARED)
def test_one_matrix_and_the_same_bits(tmp_path: Path, name: str) -> None:
    """Stored once, held once by a session, and every output has its bits, empty batches included."""
    source = build(tmp_path / "in" / "model.onnx", SHARED[name])
    outcome = api.plan_graph_dedup(source).execute(tmp_path / "out.onnx")
    (matrix,) = (matrix for matrix in outcome.plan.matrices if "quantised" in matrix.kinds)
    assert matrix.initializer == "head" and not matrix.left
    assert outcome.proofs[0].copies == (("head", 1),)
    assert not {"embed", "embed_scales", "embed_zeros"} & {name for name, _ in tensors(tmp_path / "out.onnx")}
    for seed, shape in enumerate([*SHAPES, (0, 3), (2, 0)]):
        before, after = (outputs(path, shape, V, seed=seed) for path in (source, tmp_path / "out.onnx"))
        assert same_bits(before, after), shape
    (graph,) = api.inspect(tmp_path / "out.onnx").checkpoint.graphs
    assert [(read.role, read.name) for read in graph.quantised] == [("embedding", "head"), ("head", "head")]
    assert not any(latent.extra for latent in graph.latent)
    assert not api.plan_graph_dedup(tmp_path / "out.onnx").plan.matrices


LOOKALIKES = {
    "codes": (Pair(changed=("embed",)), "their codes differ"),
    "scales": (Pair(changed=("embed_scales",)), "their codes are equal, but their scales differ"),
    "zero points": (Pair(zeros=True, changed=("embed_zeros",)), "their codes are equal, but their zero points differ"),
    "symmetric head": (
        Pair(zeros=True, without=("head_zeros",)),
        "their codes are equal, but only the embedding has zero points",
    ),
    "symmetric embedding": (
        Pair(zeros=True, without=("embed_zeros",)),
        "their codes are equal, but only the head has zero points",
    ),
    "old opset": (Pair(opset=17), "opset 17 is older than 18"),
}


@pytest.mark.parametrize("name", LOOKALIKES)
def test_what_only_looks_equal_is_refused(tmp_path: Path, name: str) -> None:
    """The plan says in one sentence why both stay, and writes what it read."""
    pair, why = LOOKALIKES[name]
    source = build(tmp_path / "in" / "model.onnx", pair)
    outcome = api.plan_graph_dedup(source).execute(tmp_path / "out.onnx")
    (matrix,) = (matrix for matrix in outcome.plan.matrices if "quantised" in matrix.kinds)
    assert matrix.left == f"the quantised embedding and head stay two matrices: {why} (embed, head)"
    assert {"embed", "head"} <= {name for name, _ in tensors(tmp_path / "out.onnx")}


def test_another_block_size_is_refused(tmp_path: Path) -> None:
    """Blocks of 64 with half as many scales: the same sides, another quantisation."""
    source = build(tmp_path / "in" / "model.onnx", Pair())
    made = onnx.load(source)
    scales = next(tensor for tensor in made.graph.initializer if tensor.name == "embed_scales")
    scales.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(scales)[:, ::2].copy(), "embed_scales"))
    next(entry for entry in made.graph.node[0].attribute if entry.name == "block_size").i = 64
    onnx.save(made, source)
    plan = api.plan_graph_dedup(source).plan
    (matrix,) = plan.matrices
    assert "stay two matrices: 4 bits in blocks of 64 and 4 bits in blocks of 32 (embed, head)" in matrix.left
    assert not any(matrix.done for matrix in plan.matrices)


def test_default_zero_points_are_no_difference(tmp_path: Path) -> None:
    """Zero points that are all 8 are what an operator without zero points subtracts."""
    source = build(tmp_path / "in" / "model.onnx", Pair(zeros=True, without=("head_zeros",)))
    made = onnx.load(source)
    zeros = next(tensor for tensor in made.graph.initializer if tensor.name == "embed_zeros")
    zeros.CopyFrom(numpy_helper.from_array(np.full_like(numpy_helper.to_array(zeros), 0x88), "embed_zeros"))
    onnx.save(made, source)
    api.plan_graph_dedup(source).execute(tmp_path / "out.onnx")
    assert {name for name, array in tensors(tmp_path / "out.onnx") if array.size > 8} == {"head", "head_scales"}
    before, after = (outputs(path, (2, 7), V) for path in (source, tmp_path / "out.onnx"))
    assert same_bits(before, after)


def test_a_change_after_the_plan_is_seen(tmp_path: Path) -> None:
    """The codes are compared again before the rename."""
    source = build(tmp_path / "in" / "model.onnx", replace(SHARED["int4, external"], blocks=8))
    planned = api.plan_graph_dedup(source)
    data = source.with_name("model.onnx.data")
    stat = data.stat()

    def change(*_: object) -> None:
        with data.open("r+b") as file:
            file.write(b"\1" * (V * 8))
        os.utime(data, ns=(stat.st_atime_ns, stat.st_mtime_ns))

    with pytest.raises(StalePlanError):
        planned.execute(tmp_path / "out.onnx", progress=change)
    assert not (tmp_path / "out.onnx").exists()


CODES, H = 96, 32


def dequantised(path: Path, kind: str, *, per_row: bool, zeros: bool = True, changed: bool = False) -> Path:
    """An embedding and a head on int8 codes. ``kind`` says how the head reads them, ``per_row`` how they are scaled."""
    rng = np.random.default_rng(0)
    codes = rng.integers(-127, 127, (CODES, H), np.int8)
    stored = {
        "W": codes,
        "S": rng.random(CODES).astype("f4") + 0.1 if per_row else np.array(0.01, "f4"),
        "Z": rng.integers(-9, 9, CODES, np.int8) if per_row else np.array(3, np.int8),
    }
    other = codes.copy()
    other[0, 0] += changed
    parts, axis = "S Z" if zeros else "S", {"axis": 0} if per_row else {}
    nodes = [op("DequantizeLinear", f"W {parts}", "F", **axis), op("Gather", "F input_ids", "x")]
    if kind == "rows":
        nodes = [op("Gather", "W input_ids", "rows"), op("DequantizeLinear", f"rows {parts}", "x")]
    turned = kind in ("turned", "rows")
    if kind != "shared":
        stored["W2"] = other.T.copy() if turned else other
        more = {"axis": 1 if turned else 0} if per_row else {}
        nodes.append(op("DequantizeLinear", f"W2 {parts}", "F2", **more))
    matrix = "F" if kind == "shared" else "F2"
    if kind == "gemm":
        stored |= {"flat": np.array([-1, H]), "whole": np.array([0, -1, CODES]), "tokens": np.array([CODES])}
        nodes += [
            op("Reshape", "x flat", "x2"),
            op("Gemm", f"x2 {matrix}", "y2", transB=1),
            op("Shape", "input_ids", "ids"),
            op("Concat", "ids tokens", "sides", axis=0),
            op("Reshape", "y2 sides", "logits", allowzero=1),
        ]
    else:
        if not turned:
            nodes.append(op("Transpose", matrix, "T", perm=[1, 0]))
        nodes.append(op("MatMul", f"x {matrix if turned else 'T'}", "logits"))
    return save(model(nodes, [token_ids()], [value("logits", ["b", "s", CODES])], stored, opset=21), path)


SHARED_CODES = [("shared", False), ("shared", True), ("two", False), ("turned", False), ("rows", False),
                ("gemm", False), ("gemm", True)]  # fmt: skip


@pytest.mark.parametrize("zeros", [True, False])
@pytest.mark.parametrize(("kind", "per_row"), SHARED_CODES)
def test_one_matrix_of_codes(tmp_path: Path, kind: str, per_row: bool, zeros: bool) -> None:
    """A session of the source holds two; of the result one, proved. One scale for all rows, or one for each."""
    source = dequantised(tmp_path / "model.onnx", kind, per_row=per_row, zeros=zeros)
    outcome = api.plan_graph_dedup(source).execute(tmp_path / "out.onnx")
    (matrix,) = outcome.plan.matrices
    assert matrix.done and not matrix.left
    assert outcome.proofs[0].copies == ((matrix.initializer, 1),)
    for seed, shape in enumerate(SHAPES):
        before, after = (outputs(path, shape, CODES, seed=seed) for path in (source, tmp_path / "out.onnx"))
        assert same_bits(before, after), shape
    assert not any(matrix.done for matrix in api.plan_graph_dedup(tmp_path / "out.onnx").plan.matrices)


@pytest.mark.parametrize("kind", ["two", "turned"])
def test_a_fused_product_stays(tmp_path: Path, kind: str) -> None:
    """A session fuses a MatMul with codes of several scales. Shared codes are not fused and would round differently."""
    source = dequantised(tmp_path / "model.onnx", kind, per_row=True)
    outcome = api.plan_graph_dedup(source).execute(tmp_path / "out.onnx")
    (matrix,) = outcome.plan.matrices
    assert not matrix.done and "fuses a MatMul with the DequantizeLinear" in matrix.left
    before, after = (outputs(path, (2, 7), CODES) for path in (source, tmp_path / "out.onnx"))
    assert same_bits(before, after)


@pytest.mark.parametrize("kind", ["two", "turned"])
def test_a_product_with_a_separate_scale_stays(tmp_path: Path, kind: str) -> None:
    """A session fuses it, since no other node reads its single scale. dedup shared the codes, and its proof failed."""
    source = dequantised(tmp_path / "model.onnx", kind, per_row=False)
    graph = onnx.load(source)
    graph.graph.initializer.append(onnx.numpy_helper.from_array(np.array(0.02, "f4"), "S2"))
    next(node for node in graph.graph.node if "W2" in node.input).input[1] = "S2"
    onnx.save(graph, source)
    outcome = api.plan_graph_dedup(source).execute(tmp_path / "out.onnx")
    assert not any(matrix.done for matrix in outcome.plan.matrices)
    for shape in SHAPES:
        before, after = (outputs(path, shape, CODES) for path in (source, tmp_path / "out.onnx"))
        assert same_bits(before, after), shape


@pytest.mark.parametrize("kind", ["two", "turned", "gemm"])
def test_other_codes_stay(tmp_path: Path, kind: str) -> None:
    """One code differs: nothing is shared, and nothing is rewritten."""
    source = dequantised(tmp_path / "model.onnx", kind, per_row=False, changed=True)
    operators = [node.op_type for node in onnx.load(source).graph.node]
    assert not api.plan_graph_dedup(source).execute(tmp_path / "out.onnx").plan.matrices
    assert [node.op_type for node in onnx.load(tmp_path / "out.onnx").graph.node] == operators
