"""Copies are found by their content: no name, and nothing less than every bit, decides."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import tieconv as api
from fixtures.onnx_graphs import Graph, H, V, embedding, turned, values
from tests.onnx.sessions import outputs, same_bits
from tests.onnx.stored import tensors


def plan(arrays: dict[str, np.ndarray], directory: Path):
    graph = embedding()
    graph.tensors |= arrays
    hidden = graph.body()
    for name in arrays:
        graph.add("MatMul", [hidden, name], f"logits.{name}")
        graph.output(f"logits.{name}")
    return api.plan_graph_dedup(graph.save(directory / "model.onnx")).plan


@settings(max_examples=25, deadline=None)
@given(st.integers(0, V * H * 32 - 1))
def test_one_bit(place: int) -> None:
    """Two matrices that differ in one bit anywhere are two matrices, whatever they are called."""
    copy = turned(embedding().tensors["model.embed_tokens.weight"])
    flat = copy.reshape(-1).view("u1")
    flat[place // 8] ^= 1 << (place % 8)
    with TemporaryDirectory() as directory:
        assert plan({"lm_head.weight": copy}, Path(directory)).matrices == ()


@pytest.mark.parametrize("name", ["lm_head.weight", "val_447", "x", "../é\n"])
def test_any_name(tmp_path: Path, name: str) -> None:
    """A copy is found under any name."""
    found = plan({name: turned(embedding().tensors["model.embed_tokens.weight"])}, tmp_path)
    assert found.matrices[0].dropped == (name,)


def test_a_cast_that_rounds_is_no_copy(tmp_path: Path) -> None:
    """A head that is the embedding rounded to half precision holds other values."""
    graph = embedding()
    graph.tensors["head"] = turned(graph.tensors["model.embed_tokens.weight"].astype("f2"))
    graph.add("Cast", [graph.body()], "narrow", to=10)
    graph.add("MatMul", ["narrow", "head"], "logits")
    graph.output("logits", dtype=10)
    assert api.plan_graph_dedup(graph.save(tmp_path / "model.onnx")).plan.matrices == ()


def test_a_cast_with_a_nan_is_left(tmp_path: Path) -> None:
    """A runtime's Cast need not keep a NaN's payload, so such a pair is not shared."""
    graph = embedding()
    half = values(1, (V, H), "f2")
    half[3, 4] = np.nan
    graph.tensors["model.embed_tokens.weight"] = half.astype("f4")
    graph.tensors["head"] = turned(half)
    graph.add("Cast", [graph.body()], "narrow", to=10)
    graph.add("MatMul", ["narrow", "head"], "logits")
    graph.output("logits", dtype=10)
    assert api.plan_graph_dedup(graph.save(tmp_path / "model.onnx")).plan.matrices == ()


def test_nan_and_zero_signs_are_bits(tmp_path: Path) -> None:
    """A NaN is equal to itself, and -0 is not 0."""
    graph = embedding()
    weight = graph.tensors["model.embed_tokens.weight"]
    weight[0, 0], weight[1, 1] = np.nan, 0.0
    same, other = turned(weight), turned(weight)
    other[1, 1] = -0.0
    for name, array in {"same": same, "other": other}.items():
        graph.tensors[name] = array
        graph.add("MatMul", [graph.body() if name == "same" else "hidden", name], f"logits.{name}")
        graph.output(f"logits.{name}")
    (matrix,) = api.plan_graph_dedup(graph.save(tmp_path / "model.onnx")).plan.matrices
    assert matrix.dropped == ("same",)


def test_cast_by_a_node_is_said(tmp_path: Path) -> None:
    """A Cast of a stored matrix becomes a second one in a session: reported, and left, as the file would grow."""
    graph = embedding()
    graph.tensors["model.embed_tokens.weight"] = values(1, (V, H), "f2")
    graph.nodes[0].output[0] = "narrow"
    graph.add("Cast", ["narrow"], "embedded", to=1)
    hidden = graph.body()
    graph.add("Cast", ["model.embed_tokens.weight"], "wide", to=1)
    graph.add("Transpose", ["wide"], "turned", perm=[1, 0])
    graph.add("MatMul", [hidden, "turned"], "logits")
    graph.output("logits")
    (matrix,) = api.plan_graph_dedup(graph.save(tmp_path / "model.onnx")).plan.matrices
    assert not matrix.done and "Cast" in matrix.left


def test_types_behind_a_transpose_need_no_declaration(tmp_path: Path) -> None:
    """A head behind a Transpose of which the graph declares nothing computes in the type of its own copy.

    Beside an F64 copy that only a Cast reads, the two F32 copies are shared and the F64 one stays.
    """
    table = values(1, (V, H))
    graph = Graph(opset=18)
    graph.tensors |= {"embed": table, "head": table.copy(), "wide": table.astype("f8")}
    x = graph.add("Gather", ["embed", "input_ids"], "x")
    weight = graph.add("Transpose", ["head"], "turned", perm=[1, 0])
    graph.add("MatMul", [x, weight], "logits")
    graph.add("Cast", ["wide"], "narrow", to=TensorProto.FLOAT)
    graph.add("Gather", ["narrow", "input_ids"], "other")
    graph.output("logits", ["b", "s", V], TensorProto.FLOAT)
    graph.output("other", ["b", "s", H], TensorProto.FLOAT)
    source = graph.save(tmp_path / "in" / "model.onnx")
    outcome = api.plan_graph_dedup(source.parent).execute(tmp_path / "out")
    assert outcome.verified
    matrices = [array for _, array in tensors(tmp_path / "out" / "model.onnx") if array.ndim == 2]
    assert sorted(array.dtype.str for array in matrices) == ["<f4", "<f8"]
    assert same_bits(*(outputs(path, (2, 3), V) for path in (source, tmp_path / "out" / "model.onnx")))


def test_a_constant_node_of_the_same_values_is_shared(tmp_path: Path) -> None:
    """Its values are compared as those of an initializer are, and the proof counts one copy."""
    table = values(1, (V, H))
    graph = Graph(opset=18)
    graph.tensors |= {"embed": table, "head": np.ascontiguousarray(table.T)}
    x = graph.add("Gather", ["embed", "input_ids"], "x")
    graph.add("MatMul", [x, "head"], "logits")
    graph.nodes.append(helper.make_node("Constant", [], ["fixed"], value=numpy_helper.from_array(table, "fixed")))
    graph.add("Gather", ["fixed", "input_ids"], "other")
    graph.output("logits", ["b", "s", V], TensorProto.FLOAT)
    graph.output("other", ["b", "s", H], TensorProto.FLOAT)
    source = graph.save(tmp_path / "in" / "model.onnx")
    outcome = api.plan_graph_dedup(source.parent).execute(tmp_path / "out")
    assert outcome.verified and [count for _, count in outcome.proofs[0].copies] == [1]
    assert same_bits(*(outputs(path, (2, 3), V) for path in (source, tmp_path / "out" / "model.onnx")))


def test_a_matrix_turned_twice_is_read_as_it_lies(tmp_path: Path) -> None:
    """Two Transposes in front of a lookup: a session would fold them into a copy beside the shared one."""
    table = values(1, (V, H))
    graph = Graph(opset=18)
    graph.tensors |= {"embed": table, "head": np.ascontiguousarray(table.T)}
    turned = graph.add("Transpose", ["embed"], "turned", perm=[1, 0])
    back = graph.add("Transpose", [graph.add("Identity", [turned], "same")], "back", perm=[1, 0])
    graph.add("MatMul", [graph.add("Gather", [back, "input_ids"], "x"), "head"], "logits")
    graph.output("logits", ["b", "s", V], TensorProto.FLOAT)
    source = graph.save(tmp_path / "in" / "model.onnx")
    outcome = api.plan_graph_dedup(source.parent).execute(tmp_path / "out")
    assert [count for _, count in outcome.proofs[0].copies] == [1]
    assert same_bits(*(outputs(path, (2, 3), V) for path in (source, tmp_path / "out" / "model.onnx")))


def test_a_wider_copy_behind_a_cast_stays(tmp_path: Path) -> None:
    """An F64 copy that a Cast reads: sharing it would hold F64 and the folded F32. It is left, with the reason."""
    table = values(1, (V, H))
    graph = Graph(opset=18)
    graph.tensors |= {"embed": table, "head": np.ascontiguousarray(table.T).astype("f8")}
    weight = graph.add("Cast", ["head"], "narrow", to=TensorProto.FLOAT)
    graph.add("MatMul", [graph.add("Gather", ["embed", "input_ids"], "x"), weight], "logits")
    graph.output("logits", ["b", "s", V], TensorProto.FLOAT)
    plan = api.plan_graph_dedup(graph.save(tmp_path / "in" / "model.onnx")).plan
    assert not any(matrix.done for matrix in plan.matrices)
    assert any("a Cast reads it" in note for note in plan.notes)


def test_a_transpose_behind_the_head_is_taken_forward(tmp_path: Path) -> None:
    """The form `transpose` lets two heads read one Transpose, wherever the graph has it: nodes stay in order."""
    table = values(1, (V, H))
    graph = Graph(opset=18)
    graph.tensors |= {"embed": table, "head": np.ascontiguousarray(table.T)}
    x = graph.add("Gather", ["embed", "input_ids"], "x")
    graph.add("MatMul", [x, "head"], "logits")
    graph.add("MatMul", [x, graph.add("Transpose", ["embed"], "turned", perm=[1, 0])], "more")
    for name in ("logits", "more"):
        graph.output(name, ["b", "s", V], TensorProto.FLOAT)
    source = graph.save(tmp_path / "in" / "model.onnx")
    outcome = api.plan_graph_dedup(source.parent, head_form="transpose").execute(tmp_path / "out")
    assert outcome.verified and [count for _, count in outcome.proofs[0].copies] == [2]
    assert same_bits(*(outputs(path, (2, 3), V) for path in (source, tmp_path / "out" / "model.onnx")))
