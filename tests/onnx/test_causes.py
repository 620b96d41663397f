"""The reason of a failed graph names a constant only if it is close to a number of the model and equal to none."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

pytest.importorskip("torch")

import tieconv
from tests.onnx import faults
from tests.onnx.planted import arithmetic as ar
from tests.onnx.planted.catalogue import FAULTS
from tieconv.onnx.parity.causes import wrong_constant
from tieconv.onnx.parity.passes import ModelNumbers


def graph_of(nodes: Sequence[onnx.NodeProto], **numbers: float) -> onnx.ModelProto:
    """A graph of x with these numbers beside it."""
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("x", "y")]
    tensors = [numpy_helper.from_array(np.array([number], np.float32), name) for name, number in numbers.items()]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def chain(*operators: tuple[str, str]) -> list[onnx.NodeProto]:
    """One operator behind the other, each with a number as its second input if it has a name."""
    names = ["x", *(f"v{at}" for at in range(len(operators) - 1)), "y"]
    return [
        helper.make_node(kind, [names[at], number] if number else [names[at]], [names[at + 1]])
        for at, (kind, number) in enumerate(operators)
    ]


def likely(model: onnx.ModelProto, epsilons: Sequence[float] = (), factors: Sequence[float] = ()) -> list[str]:
    graph = SimpleNamespace(model=ir.serde.deserialize_model(model), embedding=None)
    subject = SimpleNamespace(pair=None, graph=graph, precision="float32")
    return list(wrong_constant(subject, ModelNumbers(frozenset(epsilons), tuple(factors))))  # type: ignore[arg-type]


def test_an_epsilon_is_added_before_a_root() -> None:
    """Any other epsilon than the model's is named, also an attribute and the default of an operator."""
    nodes = chain(("Add", "e"), ("Sqrt", ""), ("Mul", "e"))
    nodes[0].input[1] = "cast"
    nodes.insert(0, helper.make_node("Cast", ["e"], ["cast"], to=TensorProto.FLOAT))
    norm = "a norm of the graph has epsilon 1e-06, but the model's class has 1e-05"
    assert likely(graph_of(nodes, e=1e-6), [1e-5], [1e-3]) == [norm]
    assert likely(graph_of(nodes, e=1e-5), [1e-5], [1e-3]) == []
    default = graph_of([helper.make_node("LayerNormalization", ["x", "w"], ["y"], name="n")], w=0.7)
    assert likely(default, [1e-12], []) == ["a norm of the graph has epsilon 1e-05, but the model's class has 1e-12"]


SCALES = [
    # the constants of the graph, the model's factors, and the constant that is likely wrong
    ({"a": 5.66}, (32**0.5,), "a is 5.66, but the model has 5.65685"),
    ({"a": 0.6}, (8**-0.25, 8**-0.5), "a is 0.6, but the model has 0.594604"),
    ({"a": 5.66, "b": 32**0.5}, (32**0.5,), "a is 5.66, but the model has 5.65685"),
    ({"a": 5.75}, (32**0.5,), ""),
    ({"a": 12.05, "b": 0.3}, (12.0, 0.22), "a is 12.05, but the model has 12"),
    ({"a": 32**0.5, "b": 0.7}, (32**0.5,), ""),
    ({"a": 0.5, "b": 1.0}, (0.51, 1.01), ""),
]


@pytest.mark.parametrize(("constants", "factors", "wrong"), SCALES)
def test_the_nearest_pair_is_named(constants: dict[str, float], factors: tuple[float, ...], wrong: str) -> None:
    """A constant that the model lacks, and a factor that the graph lacks."""
    model = graph_of(chain(*(("Mul", name) for name in constants)), **constants)
    assert likely(model, [], factors) == ([f"the constant {wrong}"] if wrong else [])


def reason(source: Path, model: Path, fault: faults.Fault, out: Path) -> str:
    """What parity says of the graph with the fault, which must fail."""
    report = tieconv.parity(faults.plant(source, fault, out), model, provider="cpu", budget="1s")
    assert str(report.verdict) == "failed"
    return report.reason


@pytest.mark.slow
def test_the_wrong_constant_is_named(exported, tmp_path: Path) -> None:
    """The attention scale of BERT, and no constant for what is no constant's fault."""
    bert, path = exported("bert"), tmp_path / "model.onnx"
    found = reason(bert.graph, bert.model, ar.number(8**-0.25, 0.6), path)
    assert found.startswith("the constant val_") and found.endswith(" is 0.6, but the model has 0.594604")
    assert reason(bert.graph, bert.model, ar.two_swapped("val_69", "val_77"), path) == ""
    assert reason(bert.graph, bert.model, FAULTS["one element of a position table"][0], path) == ""
