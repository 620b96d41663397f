"""Quantised weights: never measured as if they were float, and every copy that a session makes of them is told."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import tieconv as api
from fixtures import exporters
from fixtures.onnx_graphs import build
from tests.cli.run import run
from tests.schemas import validate
from tieconv.checkpoint.inspection import State
from tieconv.errors import RefusedError
from tieconv.onnx.parity.quantised_weights import matrices
from tieconv.reporters import schemas

V, H = 96, 32


def int4(path: Path) -> Path:
    """Embedding and head on one int4 matrix, as onnxruntime-genai shares it: the embedding reads it through a Reshape.

    Tables of positions in F32 are most of its bytes.
    """
    rng = np.random.default_rng(0)
    tensors = {
        "head_Q4": rng.integers(0, 256, (V, 1, H // 2), np.uint8),
        "head_scales": rng.standard_normal((V, 1)).astype("f4"),
        "two axes": np.array([V, H // 2]),
        "table": rng.standard_normal((256, H)).astype("f4"),
    }
    bits = {"bits": 4, "block_size": 32}
    nodes = [
        helper.make_node("Reshape", ["head_Q4", "two axes"], ["flat"]),
        helper.make_node(
            "GatherBlockQuantized", ["flat", "input_ids", "head_scales"], ["found"], domain="com.microsoft",
            gather_axis=0, quantize_axis=1, **bits,
        ),
        helper.make_node("Gather", ["table", "input_ids"], ["place"]),
        helper.make_node("Add", ["found", "place"], ["x"]),
        helper.make_node(
            "MatMulNBits", ["x", "head_Q4", "head_scales"], ["logits"], name="/lm_head/MatMul_Q4", K=H, N=V,
            domain="com.microsoft", **bits,
        ),
    ]  # fmt: skip
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["b", "s"])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["b", "s", V])],
        [numpy_helper.from_array(array, name) for name, array in tensors.items()],
    )
    domains = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=domains, ir_version=10), path)
    return path


def test_a_folded_reshape_is_told(tmp_path: Path) -> None:
    """A session holds the matrix in both shapes; what is told is what ONNX Runtime.s optimised model holds."""
    path = int4(tmp_path / "model.onnx")
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    initializers = onnx.load(tmp_path / "optimised.onnx").graph.initializer
    (graph,) = api.inspect(path).checkpoint.graphs
    assert graph.session_bytes == sum(numpy_helper.to_array(tensor).nbytes for tensor in initializers)
    (latent,) = graph.latent
    assert (latent.name, latent.operators, latent.extra) == ("head_Q4", ("Reshape",), True)
    assert latent.nbytes == V * H // 2


def test_parity_refuses_by_what_reads_it(tmp_path: Path) -> None:
    """However few of the bytes they are: the refusal names the node and the weight, exit 2."""
    path, checkpoint = int4(tmp_path / "model.onnx"), exporters.HERE / "checkpoints" / "optimum-llama"
    with pytest.raises(RefusedError, match="MatMulNBits /lm_head/MatMul_Q4 reads the quantized weight head_Q4"):
        api.parity(path, checkpoint, provider="cpu")
    assert run("parity", path, checkpoint).exit_code == 2


def test_activations_are_no_folded_shapes(tmp_path: Path) -> None:
    """A Reshape of what is computed folds nothing, and its shape is in the session."""
    (before,) = api.inspect(exporters.HERE / "genai-qwen2" / "model.onnx").checkpoint.graphs
    assert {latent.operators for latent in before.latent} == {("Transpose",)}
    model = onnx.load(int4(tmp_path / "model.onnx"))
    model.graph.node[4].input[0] = "shaped"
    model.graph.initializer.append(numpy_helper.from_array(np.array([0, 0, H]), "same"))
    model.graph.node.insert(4, helper.make_node("Reshape", ["x", "same"], ["shaped"]))
    (plain,) = api.inspect(tmp_path / "model.onnx").checkpoint.graphs
    onnx.save(model, tmp_path / "model.onnx")
    (shaped,) = api.inspect(tmp_path / "model.onnx").checkpoint.graphs
    assert shaped.session_bytes == plain.session_bytes + 24 and shaped.latent == plain.latent


def told(path: Path) -> list[tuple[str, str, str]]:
    found = json.loads(run("inspect --json", path).stdout)
    validate(found, json.loads((Path(schemas.__path__[0]) / "inspect.schema.json").read_text()))
    return [(read["role"], read["tensor"], read["operator"]) for read in found["graphs"][0]["quantised"]]


def test_an_int4_pair_is_named(tmp_path: Path) -> None:
    """Head and embedding by what computes with them; one matrix for both is a tie."""
    model = onnx.load(int4(path := tmp_path / "model.onnx"))
    del model.graph.node[2:4]  # the table, a plain matrix that tokens look up
    model.graph.node[2].input[0] = "found"
    onnx.save(model, path)
    assert told(path) == [("embedding", "head_Q4", "GatherBlockQuantized"), ("head", "head_Q4", "MatMulNBits")]
    text = run("inspect", path).stdout
    assert "output head      head_Q4" in text and "quantised (MatMulNBits)" in text
    found = api.inspect(path)
    assert found.head.output_head is not None and found.head.output_head.tied_to == "head_Q4"
    assert [len(tie.members) for tie in found.ties] == [1]


def test_positions_are_not_the_embedding_of_an_int4_pair(tmp_path: Path) -> None:
    """A float table of positions that an input indexes, with more rows than there are tokens."""
    path = int4(tmp_path / "model.onnx")
    assert told(path) == [("embedding", "head_Q4", "GatherBlockQuantized"), ("head", "head_Q4", "MatMulNBits")]
    found = api.inspect(path)
    assert found.head.input_embedding is not None and found.head.input_embedding.name == "head_Q4"
    assert found.checkpoint.graphs[0].embedding is None


PAIRS = {
    "equal": ({}, State.IDENTICAL),
    "other codes": ({"embed_Q4": 1}, State.UNREAD),
    "other scales": ({"embed_scales": 1}, State.UNREAD),
    "other zero points": ({"embed_zeros": 1}, State.UNREAD),
}


def two_matrices(path: Path, changed: dict[str, int], *, rows: int = 2048) -> Path:
    """A quantised embedding and a quantised head, stored apart, that hold the same unless ``changed``."""
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 256, (rows, 1, H // 2), np.uint8)
    scales, zeros = rng.standard_normal((rows, 1)).astype("f4"), rng.integers(0, 256, (rows, 1), np.uint8)
    tensors = {
        "embed_Q4": codes.reshape(rows, -1).copy(), "embed_scales": scales.copy(), "embed_zeros": zeros.copy(),
        "head_Q4": codes, "head_scales": scales, "head_zeros": zeros,
    }  # fmt: skip
    for name in changed:
        tensors[name][-1, -1] += 1
    bits = {"bits": 4, "block_size": 32, "domain": "com.microsoft"}
    nodes = [
        helper.make_node(
            "GatherBlockQuantized", ["embed_Q4", "input_ids", "embed_scales", "embed_zeros"], ["x"], gather_axis=0,
            quantize_axis=1, **bits,
        ),
        helper.make_node(
            "MatMulNBits", ["x", "head_Q4", "head_scales", "head_zeros"], ["product"], K=H, N=rows, **bits
        ),
        helper.make_node("LogSoftmax", ["product"], ["logits"], axis=-1),
    ]  # fmt: skip
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["b", "s"])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["b", "s", rows])],
        [numpy_helper.from_array(array, name) for name, array in tensors.items()],
    )
    domains = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=domains, ir_version=10), path)
    return path


@pytest.mark.parametrize("name", PAIRS)
def test_quantised_copies_are_compared(tmp_path: Path, name: str) -> None:
    """Equal codes, scales and zero points are one matrix, stored twice; anything else is not compared.

    `dedup` makes them one, in whatever shapes they are stored, so its command is printed.
    """
    changed, state = PAIRS[name]
    path = two_matrices(tmp_path / "model.onnx", changed)
    found = api.inspect(path)
    (tie,) = found.ties
    assert (tie.canonical, tie.members[1].name, tie.members[1].state) == ("embed_Q4", "head_Q4", state)
    assert tie.consistent == (True if state is State.IDENTICAL else None)
    if state is State.IDENTICAL:
        (finding,) = found.findings
        assert finding.rule == "ONX001" and finding.remedy is not None and finding.remedy.safe
        assert tie.bytes_wasted == 2048 * (H // 2 + 4 + 1)
        (matrix,) = api.plan_graph_dedup(path).plan.matrices
        assert matrix.kinds == ("quantised",) and set(matrix.dropped) == {"embed_Q4", "embed_scales", "embed_zeros"}
    else:
        assert found.findings == () and "differ" in str(tie.members[1].relation.to_dict()["reason"])


@pytest.mark.parametrize(
    ("axes", "pairs"), [({}, 1), ({"quantize_axis": -1}, 1), ({"quantize_axis": 0}, 0), ({"gather_axis": 1}, 0)]
)
def test_attributes_may_be_absent(tmp_path: Path, axes: dict[str, int], pairs: int) -> None:
    """Without attributes a lookup reads rows of 4-bit codes, quantised along each row. Along columns it is no pair."""
    path = two_matrices(tmp_path / "model.onnx", {})
    model = onnx.load(path)
    lookup = model.graph.node[0]
    size = [attribute for attribute in lookup.attribute if attribute.name == "block_size"]
    del lookup.attribute[:]
    lookup.attribute.extend([*size, *(helper.make_attribute(name, value) for name, value in axes.items())])
    onnx.save(model, path)
    assert len(api.inspect(path).ties) == pairs
    assert not pairs or len(api.plan_graph_dedup(path).plan.matrices) == 1


def test_a_dynamically_quantised_head_is_named(tmp_path: Path) -> None:
    """ONNX Runtime's own `quantize_dynamic`: the head is a MatMulInteger."""
    from onnxruntime.quantization import quantize_dynamic

    source = build("soft_cap", tmp_path / "model.onnx", external=False)
    quantize_dynamic(source, tmp_path / "int8.onnx", op_types_to_quantize=["MatMul"])
    ((role, name, operator),) = told(tmp_path / "int8.onnx")
    assert (role, operator) == ("head", "MatMulInteger") and name.endswith("_quantized")
    assert told(source) == []


@pytest.mark.parametrize("turned", [False, True])
def test_a_dequantised_head_is_named(tmp_path: Path, turned: bool) -> None:
    """QDQ: the MatMul reads a DequantizeLinear of the int8 matrix, as it lies or through a Transpose."""
    matrix = np.random.default_rng(0).integers(-9, 9, (V, H) if turned else (H, V), np.int8)
    nodes = [
        helper.make_node("Gather", ["embed", "input_ids"], ["x"]),
        helper.make_node("DequantizeLinear", ["head", "scale"], ["float head"]),
        helper.make_node("Transpose" if turned else "Identity", ["float head"], ["w"]),
        helper.make_node("MatMul", ["x", "w"], ["logits"]),
    ]
    tensors = {"embed": np.ones((V, H), "f4"), "head": matrix, "scale": np.array(0.1, "f4")}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["b", "s"])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["b", "s", V])],
        [numpy_helper.from_array(array, name) for name, array in tensors.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), tmp_path / "model.onnx")
    assert told(tmp_path / "model.onnx") == [("head", "head", "DequantizeLinear")]
    assert api.inspect(tmp_path / "model.onnx").head.input_embedding is not None


def test_dequantised_matrices_are_read_behind_a_gather_and_a_transpose(tmp_path: Path) -> None:
    """The values that the graph computes with, and whether it looks them up or multiplies by them."""
    codes = np.random.default_rng(0).integers(-9, 9, (V, H), np.int8)
    tensors = {"codes": codes, "ids": np.arange(2), "scale": np.array(0.5, "f4"), "zero": np.array(3, "i1")}
    nodes = [
        helper.make_node("Gather", ["codes", "ids"], ["picked"]),
        helper.make_node("DequantizeLinear", ["picked", "scale", "zero"], ["x"]),
        helper.make_node("Transpose", ["codes"], ["turned"]),
        helper.make_node("DequantizeLinear", ["turned", "scale"], ["w"]),
        helper.make_node("MatMul", ["x", "w"], ["logits"]),
        helper.make_node("DequantizeLinear", ["codes", "scale"], ["rows"]),
        helper.make_node("Gather", ["rows", "ids"], ["y"]),
    ]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("logits", "y")]
    stored = [numpy_helper.from_array(array, name) for name, array in tensors.items()]
    model = helper.make_model(helper.make_graph(nodes, "g", [], outputs, stored))
    found = list(matrices(ir.from_proto(model)))
    assert {(made.name, made.shape) for made in found} == {("codes", (V, H))}
    assert [(made.looked_up, made.multiplied) for made in found] == [(True, False), (False, True), (True, False)]
    for made, zero in zip(found, (3, 0, 0), strict=True):
        assert np.array_equal(made.values(), (codes - np.float32(zero)) / 2)
