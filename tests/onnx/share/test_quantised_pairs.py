"""An embedding and a head with the same codes, scales and zero points become one, and every output keeps its bits."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tieconv as api
from tests.onnx.sessions import SHAPES, outputs, same_bits
from tests.onnx.stored import tensors
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
        nodes.append(helper.make_node("Reshape", ["head", "two"], ["rows"]))
    names = {side: [name for name in parts if name not in pair.without] for side, parts in names.items()}
    code, *rest = names["embed"]
    nodes += [
        helper.make_node(
            "GatherBlockQuantized", [code, "input_ids", *rest], ["x"], "embedding", gather_axis=0, quantize_axis=1,
            **form | pair.attributes,
        ),
        helper.make_node(
            "MatMulNBits", ["x", *names["head"]], ["logits"], K=width, N=V, accuracy_level=pair.accuracy, **form
        ),
    ]  # fmt: skip
    used = {name for node in nodes for name in node.input}
    kind = TensorProto.FLOAT16 if pair.half else TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["b", "s"])],
        [helper.make_tensor_value_info("logits", kind, ["b", "s", V])],
        [numpy_helper.from_array(array, name) for name, array in stored.items() if name in used],
    )
    domains = [helper.make_opsetid("", pair.opset), helper.make_opsetid("com.microsoft", 1)]
    path.parent.mkdir(exist_ok=True)
    model = helper.make_model(graph, opset_imports=domains, ir_version=10)
    outside = {"save_as_external_data": True, "location": "model.onnx.data", "size_threshold": 0}
    onnx.save(model, path, **(outside if pair.external else {}))
    return path


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
    model = onnx.load(source)
    scales = next(tensor for tensor in model.graph.initializer if tensor.name == "embed_scales")
    scales.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(scales)[:, ::2].copy(), "embed_scales"))
    next(entry for entry in model.graph.node[0].attribute if entry.name == "block_size").i = 64
    onnx.save(model, source)
    plan = api.plan_graph_dedup(source).plan
    (matrix,) = plan.matrices
    assert "stay two matrices: 4 bits in blocks of 64 and 4 bits in blocks of 32 (embed, head)" in matrix.left
    assert not any(matrix.done for matrix in plan.matrices)


def test_default_zero_points_are_no_difference(tmp_path: Path) -> None:
    """Zero points that are all 8 are what an operator without zero points subtracts."""
    source = build(tmp_path / "in" / "model.onnx", Pair(zeros=True, without=("head_zeros",)))
    model = onnx.load(source)
    zeros = next(tensor for tensor in model.graph.initializer if tensor.name == "embed_zeros")
    zeros.CopyFrom(numpy_helper.from_array(np.full_like(numpy_helper.to_array(zeros), 0x88), "embed_zeros"))
    onnx.save(model, source)
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
        content = bytearray(data.read_bytes())
        content[: V * 8] = b"\1" * (V * 8)
        with data.open("r+b") as file:
            file.write(content)
        import os

        os.utime(data, ns=(stat.st_atime_ns, stat.st_mtime_ns))

    with pytest.raises(StalePlanError):
        planned.execute(tmp_path / "out.onnx", progress=change)
    assert not (tmp_path / "out.onnx").exists()
