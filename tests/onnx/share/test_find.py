"""Copies are found by their content: no name, and nothing less than every bit, decides."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.onnx_graphs import H, V, embedding, turned, values
from tieconv import api


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
