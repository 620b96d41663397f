"""Positions that start at the length of the cache: the same numbers, with nothing copied to a device for them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")

from tests.onnx import exported
from tieconv.onnx.export.adapter import start_ranges

INT64 = ir.TensorType(ir.DataType.INT64)
FLOAT = ir.TensorType(ir.DataType.FLOAT)


def constant(name: str, number: float, kind: ir.TensorType = INT64) -> ir.Value:
    made = ir.tensor(np.array(number, np.int64 if kind == INT64 else np.float32), name=name)
    return ir.Value(name=name, shape=ir.Shape([]), type=kind, const_value=made)


def summed(
    *, first: float = 0, step: float = 1, shape: tuple[int, ...] = (), kind: ir.TensorType = INT64, turned: bool = False
) -> ir.Model:
    """Add(Range(first, length, step), past), with a past of this shape."""
    length = ir.Value(name="length", shape=ir.Shape([]), type=kind)
    past = ir.Value(name="past", shape=ir.Shape(shape), type=kind)
    bounds = [constant("first", first, kind), constant("step", step, kind)]
    counted = ir.node("Range", [bounds[0], length, bounds[1]])
    counted.outputs[0].type, counted.outputs[0].shape = kind, ir.Shape(["n"])
    sides = [past, counted.outputs[0]] if turned else [counted.outputs[0], past]
    total = ir.node("Add", sides)
    total.outputs[0].type, total.outputs[0].shape, total.outputs[0].name = kind, ir.Shape(["n"]), "positions"
    end = ir.node("Identity", [total.outputs[0]])
    end.outputs[0].type, end.outputs[0].shape, end.outputs[0].name = kind, ir.Shape(["n"]), "out"
    graph = ir.Graph([length, past], [end.outputs[0]], nodes=[counted, total, end], initializers=bounds,
                     opset_imports={"": 20}, name="g")  # fmt: skip
    return ir.Model(graph, ir_version=10)


def computed(model: ir.Model, length: object, past: object) -> np.ndarray:
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"length": np.asarray(length), "past": np.asarray(past)})[0])


@given(length=st.integers(0, 40), past=st.integers(-(2**40), 2**40), turned=st.booleans())
def test_the_numbers_are_the_same(length: int, past: int, turned: bool) -> None:
    """For any length and any past, on either side of the sum; the sum of the range is gone."""
    model = summed(turned=turned)
    want = computed(model, length, past)
    assert start_ranges(model) == 1
    assert [node.op_type for node in model.graph] == ["Add", "Range", "Identity"]
    got = computed(model, length, past)
    assert (got.dtype, got.tolist()) == (want.dtype, want.tolist())


@pytest.mark.parametrize(
    "more",
    [{"first": 2}, {"step": 2}, {"shape": (1,)}, {"shape": (1, 1)}, {"kind": FLOAT}],
    ids=["starts elsewhere", "another step", "an axis", "two axes", "floats"],
)
def test_another_sum_stays(more: dict) -> None:
    """A range that does not count from 0 by 1, a summand with axes, and floats, which would round differently."""
    model = summed(**more)
    before = ir.to_proto(model).SerializeToString()
    assert start_ranges(model) == 0
    assert ir.to_proto(model).SerializeToString() == before


def test_a_sum_that_is_an_output_stays() -> None:
    """Its name is the graph's interface."""
    model = summed()
    total = model.graph[1].outputs[0]
    model.graph.outputs[0] = total
    assert start_ranges(model) == 0


def test_an_export_computes_no_positions_from_a_range_and_a_length(tmp_path: Path) -> None:
    """In tieconv's export of a decoder no sum of a range is left, and transformers' own graph has one."""
    import tieconv

    def sums(path: Path) -> int:
        model = onnx.load(path, load_external_data=False)
        ranges = {name for node in model.graph.node if node.op_type == "Range" for name in node.output}
        return sum(node.op_type == "Add" and not ranges.isdisjoint(node.input) for node in model.graph.node)

    made = exported.build("llama", "float32", tmp_path)
    tieconv.export(made.model, tmp_path / "out", parity=False)
    assert sums(made.graph) == 1
    assert sums(tmp_path / "out" / "model.onnx") == 0
