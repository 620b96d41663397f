"""Quantised weights: never measured as if they were float, and every copy that a session makes of them is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import tieconv as api
from fixtures import exporters
from fixtures.onnx_graphs import build
from tests.cli.run import run
from tests.lazy import ir, ort, quantised_weights, torch, validate as gates
from tests.onnx.graphs import write_optimised
from tests.onnx.nodes import model, op, save, token_ids, value
from tests.schemas import validate
from tieconv.checkpoint.inspection import State
from tieconv.errors import RefusedError

V, H = 96, 32
BITS = {"bits": 4, "block_size": 32, "domain": "com.microsoft"}


def int4(path: Path) -> Path:
    """Embedding and head on one int4 matrix, as onnxruntime-genai shares it: the embedding reads it through a Reshape.

    Tables of positions in F32 are most of its bytes.
    """
    rng = np.random.default_rng(0)
    tensors = {
        "head_Q4": rng.integers(0, 256, (V, 1, H // 2), np.uint8),
        "head_scales": rng.standard_normal((V, 1)).astype("f4"),
        "two_axes": np.array([V, H // 2]),
        "table": rng.standard_normal((256, H)).astype("f4"),
    }
    nodes = [
        op("Reshape", "head_Q4 two_axes", "flat"),
        op("GatherBlockQuantized", "flat input_ids head_scales", "found", gather_axis=0, quantize_axis=1, **BITS),
        op("Gather", "table input_ids", "place"),
        op("Add", "found place", "x"),
        op("MatMulNBits", "x head_Q4 head_scales", "logits", name="/lm_head/MatMul_Q4", K=H, N=V, **BITS),
    ]
    return save(model(nodes, [token_ids()], [value("logits", ["b", "s", V])], tensors, opset=21), path)


def test_a_folded_reshape_is_told(tmp_path: Path) -> None:
    """A session holds the matrix in both shapes; what is told is what ONNX Runtime.s optimised model holds."""
    path = int4(tmp_path / "model.onnx")
    initializers = onnx.load(write_optimised(path, tmp_path / "optimised.onnx")).graph.initializer
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
    made = onnx.load(int4(tmp_path / "model.onnx"))
    made.graph.node[4].input[0] = "shaped"
    made.graph.initializer.append(numpy_helper.from_array(np.array([0, 0, H]), "same"))
    made.graph.node.insert(4, op("Reshape", "x same", "shaped"))
    (plain,) = api.inspect(tmp_path / "model.onnx").checkpoint.graphs
    onnx.save(made, tmp_path / "model.onnx")
    (shaped,) = api.inspect(tmp_path / "model.onnx").checkpoint.graphs
    assert shaped.session_bytes == plain.session_bytes + 24 and shaped.latent == plain.latent


def told(path: Path) -> list[tuple[str, str, str]]:
    found = json.loads(run("inspect --json", path).stdout)
    validate(found, "inspect")
    return [(read["role"], read["tensor"], read["operator"]) for read in found["graphs"][0]["quantised"]]


def test_an_int4_pair_is_named(tmp_path: Path) -> None:
    """Head and embedding by what computes with them; one matrix for both is a tie."""
    made = onnx.load(int4(path := tmp_path / "model.onnx"))
    del made.graph.node[2:4]  # the table, a plain matrix that tokens look up
    made.graph.node[2].input[0] = "found"
    onnx.save(made, path)
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
    lookup = "embed_Q4 input_ids embed_scales embed_zeros"
    nodes = [
        op("GatherBlockQuantized", lookup, "x", gather_axis=0, quantize_axis=1, **BITS),
        op("MatMulNBits", "x head_Q4 head_scales head_zeros", "product", K=H, N=rows, **BITS),
        op("LogSoftmax", "product", "logits", axis=-1),
    ]
    return save(model(nodes, [token_ids()], [value("logits", ["b", "s", rows])], tensors, opset=21), path)


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
    made = onnx.load(path)
    lookup = made.graph.node[0]
    size = [attribute for attribute in lookup.attribute if attribute.name == "block_size"]
    del lookup.attribute[:]
    lookup.attribute.extend([*size, *(helper.make_attribute(name, axis) for name, axis in axes.items())])
    onnx.save(made, path)
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
        op("Gather", "embed input_ids", "x"),
        op("DequantizeLinear", "head scale", "float_head"),
        op("Transpose" if turned else "Identity", "float_head", "w"),
        op("MatMul", "x w", "logits"),
    ]
    tensors = {"embed": np.ones((V, H), "f4"), "head": matrix, "scale": np.array(0.1, "f4")}
    made = model(nodes, [token_ids()], [value("logits", ["b", "s", V])], tensors, opset=18)
    path = save(made, tmp_path / "model.onnx")
    assert told(path) == [("head", "head", "DequantizeLinear")]
    assert api.inspect(path).head.input_embedding is not None


@pytest.mark.parametrize("equal", [True, False])
def test_equal_codes_of_embedding_and_head(equal: bool, tmp_path: Path) -> None:
    """The first line says what was compared, and the finding has the command that drops one of them."""
    codes = np.random.default_rng(0).integers(-9, 9, (V, H), np.int8)
    nodes = [
        op("Gather", "embed input_ids", "picked"),
        op("DequantizeLinear", "picked scale", "x"),
        op("DequantizeLinear", "head scale", "w"),
        op("MatMul", "x w", "logits"),
    ]
    head = codes.T.copy() + np.int8(not equal)
    tensors = {"embed": codes, "head": head, "scale": np.array(0.1, "f4")}
    path = save(model(nodes, [token_ids()], [value("logits", ["b", "s", V])], tensors, opset=18), tmp_path / "m.onnx")
    result = api.inspect(path)
    only = "Not known: tieconv compared only the codes of head and embedding, which are equal."
    assert result.config.why == (only if equal else "Not known: tieconv does not compare I8 values with codes.")
    assert [finding.rule for finding in result.findings] == ["ONX001"] * equal
    if equal:
        api.plan_graph_dedup(path).execute(tmp_path / "out.onnx")
        after = api.inspect(tmp_path / "out.onnx")
        assert (after.config.why, after.findings) == (only, ())


def test_dequantised_matrices_are_read_behind_a_gather_and_a_transpose(tmp_path: Path) -> None:
    """The values that the graph computes with, and whether it looks them up or multiplies by them."""
    codes = np.random.default_rng(0).integers(-9, 9, (V, H), np.int8)
    tensors = {"codes": codes, "ids": np.arange(2), "scale": np.array(0.5, "f4"), "zero": np.array(3, "i1")}
    nodes = [
        op("Gather", "codes ids", "picked"),
        op("DequantizeLinear", "picked scale zero", "x"),
        op("Transpose", "codes", "turned"),
        op("DequantizeLinear", "turned scale", "w"),
        op("MatMul", "x w", "logits"),
        op("DequantizeLinear", "codes scale", "rows"),
        op("Gather", "rows ids", "y"),
    ]
    found = list(quantised_weights.matrices(ir.from_proto(model(nodes, [], [value("logits"), value("y")], tensors))))
    assert {(made.name, made.shape) for made in found} == {("codes", (V, H))}
    assert [(made.looked_up, made.multiplied) for made in found] == [(True, False), (False, True), (True, False)]
    for made, zero in zip(found, (3, 0, 0), strict=True):
        assert np.array_equal(made.values(), (codes - np.float32(zero)) / 2)


def graph_of(nodes: list[onnx.NodeProto], tensors: dict[str, np.ndarray], inputs: tuple[str, ...] = ()) -> Any:
    """A graph of ``nodes`` that computes ``y`` from float ``inputs``."""
    return model(nodes, [value(name) for name in inputs], [value("y")], tensors, opset=21)


LAYOUTS = [
    # the sides of the scales, the attributes, elements that share a scale, and whether columns become rows
    ((), {}, V * H, False),
    ((V,), {"axis": 0}, H, False),
    ((H,), {}, V, True),
    ((H,), {"axis": -1}, V, True),
    ((V // 8, H), {"axis": 0, "block_size": 8}, 8, True),
    ((V, H // 8), {"axis": 1, "block_size": 8}, 8, False),
]


@pytest.mark.parametrize(("sides", "attributes", "group", "turned"), LAYOUTS)
@pytest.mark.parametrize("zeros", [True, False])
def test_scales_of_every_axis(sides: tuple[int, ...], attributes: dict, group: int, turned: bool, zeros: bool) -> None:
    """The values are those of the operator, with the elements of a scale side by side."""
    rng = np.random.default_rng(0)
    tensors = {"codes": rng.integers(-9, 9, (V, H), np.int8), "scale": (rng.random(sides) + 0.1).astype("f4")}
    if zeros:
        tensors["zero"] = rng.integers(-5, 5, sides, np.int8) if sides else np.array(3, np.int8)
    graph = graph_of([op("DequantizeLinear", " ".join(tensors), "y", **attributes)], tensors)
    (expected,) = ReferenceEvaluator(graph).run(None, {})
    (made,) = quantised_weights.matrices(ir.from_proto(graph))
    assert made.shape == ((H, V) if turned else (V, H))
    assert (made.rounding.bits, made.rounding.group, made.rounding.symmetric) == (8, group, not zeros)
    np.testing.assert_allclose(made.values(), expected.T if turned else expected, rtol=1e-6)


def dynamic(scale: np.ndarray, zero: np.ndarray | None) -> Any:
    """The product that `quantize_dynamic` writes: codes of the activation times codes of a weight."""
    codes = np.random.default_rng(1).integers(-9, 9, (H, V), np.int8)
    nodes = [
        op("DynamicQuantizeLinear", "x", "xq xs xz"),
        op("MatMulInteger", "xq codes xz" + (" zero" if zero is not None else ""), "product"),
        op("Cast", "product", "float", to=TensorProto.FLOAT),
        op("Mul", "xs scale", "both"),
        op("Mul", "float both", "y"),
    ]
    tensors = {"codes": codes, "scale": scale} | ({"zero": zero} if zero is not None else {})
    return graph_of(nodes, tensors, ("x",))


@pytest.mark.parametrize("columns", [True, False])
@pytest.mark.parametrize("zeros", [True, False])
def test_a_dynamic_product_without_rounded_activations(tmp_path: Path, columns: bool, zeros: bool) -> None:
    """The weight is told with one scale or one a column; the exact copy multiplies it with the float activation."""
    scale = np.linspace(0.1, 1, V, dtype="f4") if columns else np.array(0.3, "f4")
    zero = (np.arange(V) % 5).astype("i1") if columns else np.array(2, "i1")
    onnx.save(dynamic(scale, zero if zeros else None), path := tmp_path / "model.onnx")
    stored = ir.load(path)
    (made,) = quantised_weights.matrices(stored)
    assert (made.name, made.operator, made.shape) == ("codes", "MatMulInteger", (V, H))
    assert (made.looked_up, made.multiplied) == (False, True)
    assert (made.rounding.bits, made.rounding.group) == (8, H if columns else V * H)
    assert made.rounding.symmetric is not zeros
    codes = stored.graph.initializers["codes"].const_value.numpy().astype("f4")
    weight = (codes - (zero if zeros else 0)) * scale
    np.testing.assert_allclose(made.values(), weight.T, rtol=1e-6)
    x = np.random.default_rng(2).standard_normal((3, H)).astype("f4")
    exact = quantised_weights.exact_copy(str(path), tmp_path)
    before, after = (ort.InferenceSession(file).run(None, {"x": x})[0] for file in (str(path), exact))
    np.testing.assert_allclose(after, x @ weight, rtol=1e-4, atol=1e-4)
    assert 1e-3 < np.abs(before - after).max() < 1
    assert quantised_weights.activation_forms(str(path)) == {"tensor"}


@pytest.mark.parametrize(("level", "forms"), [(None, set()), (0, set()), (1, set()), (4, {"block"})])
def test_blocks_without_rounded_activations(tmp_path: Path, level: int | None, forms: set[str]) -> None:
    """MatMulNBits rounds activations at levels other than those of float32, and not in the exact copy."""
    made = onnx.load(two_matrices(path := tmp_path / "model.onnx", {}, rows=V))
    if level is not None:
        made.graph.node[1].attribute.append(helper.make_attribute("accuracy_level", level))
    onnx.save(made, path)
    assert quantised_weights.activation_forms(str(path)) == forms
    exact = quantised_weights.exact_copy(str(path), tmp_path)
    assert (exact is not None) == bool(forms)
    if exact is not None:
        assert (
            quantised_weights.activation_forms(exact) == frozenset()
            and quantised_weights.exact_copy(exact, tmp_path) is None
        )


def test_matrices_that_parity_cannot_dequantise_are_told(tmp_path: Path) -> None:
    """Codes whose columns are permuted, and operators of which no dequantised form is known."""
    made = onnx.load(two_matrices(tmp_path / "model.onnx", {}, rows=V))
    assert list(quantised_weights.unread(ir.from_proto(made))) == []
    made.graph.initializer.append(numpy_helper.from_array(np.zeros(H, "i4"), "order"))
    made.graph.node[1].name = "head"
    made.graph.node[1].input.append("order")
    made.graph.node.append(op("QMoE", "x", "z", name="experts", domain="com.microsoft"))
    assert list(quantised_weights.unread(ir.from_proto(made))) == [
        "MatMulNBits head reads codes in a form that tieconv does not know",
        "QMoE experts has no dequantised form that tieconv knows",
    ]


def test_activations_are_rounded_as_the_operators_do() -> None:
    """In the modules of the quantised parameters alone, by tensor or by blocks of 32, and only within the context."""
    heads = torch.nn.ModuleDict({name: torch.nn.Linear(40, 40, bias=False) for name in ("codes", "rest")})
    with torch.no_grad():
        for head in heads.values():
            head.weight.copy_(torch.eye(40))
    x = torch.randn(3, 40, generator=torch.Generator().manual_seed(0)) + 0.5
    nodes = [op("DynamicQuantizeLinear", "x", "q s z"), op("DequantizeLinear", "q s z", "y")]
    (by_tensor,) = ReferenceEvaluator(graph_of(nodes, {}, ("x",))).run(None, {"x": x.numpy()})
    blocks = torch.nn.functional.pad(x, (0, 24)).reshape(-1, 32)
    scale = blocks.abs().amax(1, keepdim=True) / 127
    by_block = ((blocks / scale).round() * scale).reshape(3, 64)[:, :40]
    for forms, expected in ((("tensor",), torch.from_numpy(by_tensor)), (("block",), by_block), ((), x)):
        with gates.rounded_activations(heads, {"codes.weight"}, forms):
            torch.testing.assert_close(heads["codes"](x), expected)
            assert torch.equal(heads["rest"](x), x)
        assert torch.equal(heads["codes"](x), x)
    zero = torch.zeros(1, 40)
    with gates.rounded_activations(heads, {"codes.weight"}, ("block",)):
        assert torch.equal(heads["codes"](zero), zero)
