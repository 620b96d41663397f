"""A Gemm between two Reshapes counts as a MatMul only where they keep every side but the last."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from tieconv.onnx.share.untie import reshaped_gemm_of


class Framed:
    """Reshape, Gemm and Reshape around ``x`` of [2, 3, 4], as torch exports a linear layer."""

    def __init__(self) -> None:
        self.x = self.value("x", [2, 3, 4])
        self.first = ir.node("Reshape", [self.x, self.constant("rows", [-1, 4])])
        self.gemm = ir.node("Gemm", [self.first.outputs[0], self.value("w", [4, 8])])
        self.last = self.reshape(self.constant("shape", [2, 3, 8]))

    def value(self, name: str, shape: list[int]) -> ir.Value:
        return ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(ir.DataType.FLOAT))

    def constant(self, name: str, entries: object) -> ir.Value:
        return ir.Value(name=name, const_value=ir.tensor(np.array(entries, "<i8"), name=name))

    def reshape(self, shape: ir.Value) -> ir.Node:
        return ir.node("Reshape", [self.gemm.outputs[0], shape])

    def leading(self, node: ir.Node, tail: object = (8,)) -> None:
        """The last shape is computed: the leading sides, then ``tail``."""
        joined = ir.node("Concat", [node.outputs[0], self.constant("tail", tail)], attributes={"axis": 0})
        self.last.replace_input_with(1, joined.outputs[0])

    def sliced(self, *, start: int = 0, end: int = -1, source: ir.Value | None = None, op: str = "Shape") -> ir.Node:
        shape = ir.node(op, [source or self.x])
        return ir.node("Slice", [shape.outputs[0], self.constant("s", [start]), self.constant("e", [end])])


def shaped(framed: Framed, **attributes: int) -> ir.Node:
    return ir.node("Shape", [framed.x], attributes=attributes)


GOOD = {
    "a constant shape": lambda framed: None,
    "a slice of the shape": lambda framed: framed.leading(framed.sliced()),
    "a shape that ends early": lambda framed: framed.leading(shaped(framed, end=-1)),
    "a start of nothing": lambda framed: framed.leading(shaped(framed, start=0, end=-1)),
}
OTHER = {
    "another leading side": lambda framed: framed.last.replace_input_with(1, framed.constant("shape", [3, 2, 8])),
    "one side less": lambda framed: framed.last.replace_input_with(1, framed.constant("shape", [6, 8])),
    "a shape that is not known": lambda framed: framed.last.replace_input_with(1, framed.value("shape", [3])),
    "a matrix of shapes": lambda framed: framed.last.replace_input_with(1, framed.constant("shape", [[2, 3, 8]])),
    "rows that are counted": lambda framed: framed.first.replace_input_with(1, framed.constant("rows", [6, 4])),
    "three sides before": lambda framed: framed.first.replace_input_with(1, framed.constant("rows", [-1, 2, 2])),
    "rows that are not known": lambda framed: framed.first.replace_input_with(1, framed.value("rows", [2])),
    "no Reshape before": lambda framed: framed.gemm.replace_input_with(0, ir.node("Relu", [framed.x]).outputs[0]),
    "nothing before": lambda framed: framed.gemm.replace_input_with(0, framed.value("y", [6, 4])),
    "read twice": lambda framed: ir.node("Relu", [framed.gemm.outputs[0]]),
    "read by none": lambda framed: framed.last.replace_input_with(0, framed.value("y", [6, 8])),
    "a slice that starts later": lambda framed: framed.leading(framed.sliced(start=1)),
    "a slice that ends earlier": lambda framed: framed.leading(framed.sliced(end=-2)),
    "a slice of another shape": lambda framed: framed.leading(framed.sliced(source=framed.value("z", [5, 3, 4]))),
    "a slice of no shape": lambda framed: framed.leading(framed.sliced(op="Size")),
    "a whole shape": lambda framed: framed.leading(shaped(framed)),
    "a shape that starts later": lambda framed: framed.leading(shaped(framed, start=1, end=-1)),
    "a shape of another value": lambda framed: framed.leading(
        ir.node("Shape", [framed.value("z", [5, 3, 4])], attributes={"end": -1})
    ),
    "a tail of two": lambda framed: framed.leading(framed.sliced(), [[4, 2]]),
}


@pytest.mark.parametrize("case", GOOD)
def test_a_frame(case: str) -> None:
    """It has the input and the three nodes."""
    framed = Framed()
    GOOD[case](framed)
    found = reshaped_gemm_of(framed.gemm)
    assert found is not None
    assert (found.x, found.first_reshape, found.gemm, found.last_reshape) == (
        framed.x,
        framed.first,
        framed.gemm,
        framed.last,
    )


@pytest.mark.parametrize("case", OTHER)
def test_no_frame(case: str) -> None:
    """One thing is other than in a linear layer, and the Gemm is left as it is."""
    framed = Framed()
    kept = OTHER[case](framed)
    assert reshaped_gemm_of(framed.gemm) is None, kept


def test_the_product_as_an_output() -> None:
    """A Gemm that the graph also gives out stays."""
    framed = Framed()
    ir.Graph([framed.x], framed.gemm.outputs, nodes=[framed.first, framed.gemm, framed.last], opset_imports={"": 18})
    assert reshaped_gemm_of(framed.gemm) is None


def test_the_product_as_a_shape() -> None:
    """The Reshape after it must take the product as its data."""
    framed = Framed()
    framed.last.replace_input_with(0, framed.value("y", [2, 3, 8]))
    framed.last.replace_input_with(1, framed.gemm.outputs[0])
    assert reshaped_gemm_of(framed.gemm) is None
