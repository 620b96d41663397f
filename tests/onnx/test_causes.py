"""The reason of a failed graph names a constant only if the graph agrees with the model's number in its place."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

pytest.importorskip("torch")

import tieconv
from tests.onnx import faults
from tests.onnx.planted import arithmetic as ar
from tests.onnx.planted.catalogue import FAULTS
from tests.onnx.planted.torch_once import torch_once
from tieconv.onnx import ort_session as open_
from tieconv.onnx.parity.causes import TRIALS, Constant, candidates, graph_constants, replaced
from tieconv.onnx.parity.passes import ModelNumbers

PASSES = "; with it, the worst case passes"


def graph_of(nodes: Sequence[onnx.NodeProto], path: Path, **numbers: float) -> Path:
    """A graph of x with these numbers beside it, as external data."""
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("x", "y")]
    tensors = [numpy_helper.from_array(np.array([number], np.float32), name) for name, number in numbers.items()]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.save(model, path, save_as_external_data=True, location="data", size_threshold=0)
    return path


def chain(*operators: tuple[str, str]) -> list[onnx.NodeProto]:
    """One operator behind the other, each with a number as its second input if it has a name."""
    names = ["x", *(f"v{at}" for at in range(len(operators) - 1)), "y"]
    return [
        helper.make_node(kind, [names[at], number] if number else [names[at]], [names[at + 1]])
        for at, (kind, number) in enumerate(operators)
    ]


def made(path: Path) -> list[Constant]:
    return graph_constants(ir.load(path))


def test_what_a_constant_means(tmp_path: Path) -> None:
    """A number added before a root is an epsilon. One that two operators use is listed for both and for each."""
    nodes = chain(("Add", "e"), ("Sqrt", ""), ("Div", "c"), ("Tanh", ""), ("Mul", "c"), ("LayerNormalization", "w"))
    nodes[0].input[1] = "cast"
    nodes.insert(0, helper.make_node("Cast", ["e"], ["cast"], to=TensorProto.FLOAT))
    found = made(graph_of(nodes, tmp_path / "g.onnx", e=1e-6, c=30, w=0.7))
    assert [(c.name, c.operator, c.epsilon) for c in found] == [
        ("e", "Cast", True),
        ("c", "Div/Mul", False),
        ("c", "Div", False),
        ("c", "Mul", False),
        ("w", "LayerNormalization", False),
        (nodes[-1].name, "LayerNormalization", True),
    ]
    assert found[-1].number == 1e-5


def test_a_number_is_replaced_where_it_is_used(tmp_path: Path) -> None:
    """Only the chosen uses change, and the graph still reads its data file."""
    path = graph_of(chain(("Add", "c"), ("Mul", "c")), tmp_path / "g.onnx", c=3)
    x = np.array([1, 2], np.float32)
    for operator, wanted in (("Add/Mul", (x + 5) * 5), ("Add", (x + 5) * 3), ("Mul", (x + 3) * 5)):
        (constant,) = (c for c in made(path) if c.operator == operator)
        options = ort.SessionOptions()
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(tmp_path))
        session = ort.InferenceSession(replaced(str(path), constant, np.array(5.0)), options)
        assert session.run(None, {"x": x})[0].tolist() == wanted.tolist()


SCALES = [
    # the constants of the graph, the model's factors, and what is tried first
    ({"a": 5.66}, (32**0.5,), ("a", 32**0.5)),
    ({"a": 0.6}, (8**-0.25, 8**-0.5), ("a", 8**-0.25)),
    # a factor that the graph has is tried only for constants very near to it
    ({"a": 5.66, "b": 32**0.5}, (32**0.5,), ("a", 32**0.5)),
    ({"a": 6.66, "b": 32**0.5}, (32**0.5,), None),
    ({"a": 12.05, "b": 0.3}, (12.0, 0.22), ("a", 12.0)),
    ({"a": 32**0.5, "b": 0.7}, (32**0.5,), None),
    ({"a": 0.5, "b": 11.0}, (0.4, 12.0), ("b", 12.0)),
    ({"a": 300.0}, (2.5,), None),
]


@pytest.mark.parametrize(("constants", "factors", "first"), SCALES)
def test_what_is_tried_first(
    tmp_path: Path, constants: dict[str, float], factors: tuple[float, ...], first: tuple[str, float] | None
) -> None:
    """The nearest pair of a constant that the model lacks and a factor that the graph lacks."""
    path = graph_of(chain(*(("Mul", name) for name in constants)), tmp_path / "g.onnx", **constants)
    chosen = candidates(made(path), ModelNumbers(frozenset(), factors, {}), 1e-6, None)
    assert [(c.constant.name, float(c.values)) for c in chosen[:1]] == ([] if first is None else [first])


def test_what_the_logits_suggest(tmp_path: Path) -> None:
    """A factor that the logits lack is tried in each product and quotient."""
    path = graph_of(chain(("Mul", "a"), ("Div", "b"), ("Add", "c")), tmp_path / "g.onnx", a=3, b=4, c=7)
    chosen = candidates(made(path), ModelNumbers(frozenset(), (), {}), 1e-6, 2.0)
    assert [(c.constant.name, float(c.values)) for c in chosen] == [("a", 6.0), ("b", 2.0)]


def reason(source: Path, model: Path, fault: faults.Fault, out: Path) -> str:
    """What parity says of the graph with the fault, which must fail."""
    report = tieconv.parity(faults.plant(source, fault, out), model, provider="cpu")
    assert str(report.verdict) == "failed"
    return report.reason


def logits_times(factor: float) -> faults.Fault:
    """The logits are multiplied by a number that no config has."""

    def fault(model: onnx.ModelProto) -> None:
        for node in model.graph.node:
            node.output[:] = ["scaled" if name == "logits" else name for name in node.output]
        model.graph.initializer.append(numpy_helper.from_array(np.array(factor, np.float32), "factor"))
        model.graph.node.append(helper.make_node("Mul", ["scaled", "factor"], ["logits"]))

    return fault


@pytest.mark.slow
def test_the_wrong_constant_is_named(exported, tmp_path: Path) -> None:
    """The attention scale of BERT, a factor of the logits, and no constant for what is no constant's fault."""
    bert, path = exported("bert"), tmp_path / "model.onnx"
    with torch_once():
        found = reason(bert.graph, bert.model, ar.number(8**-0.25, 0.6), path)
        assert found.startswith("the constant val_") and found.endswith(f" is 0.6, but the model has 0.594604{PASSES}")
        found = reason(bert.graph, bert.model, logits_times(1.01), path)
        assert found == f"the constant factor is 1.01, but the value that the logits suggest is 1{PASSES}"
        found = reason(bert.graph, bert.model, ar.two_swapped("val_69", "val_77"), path)
        assert found.startswith("no single constant explains the error: tieconv tried ")
        assert 0 < int(found.split()[-2]) <= TRIALS


@pytest.mark.slow
def test_a_graph_with_other_weights_has_no_wrong_constant(exported, tmp_path: Path) -> None:
    """Its gate names the weight, so no constant is tried."""
    bert = exported("bert")
    assert reason(bert.graph, bert.model, FAULTS["one element of a position table"][0], tmp_path / "model.onnx") == ""


@pytest.mark.slow
def test_a_fault_of_one_session_is_no_constant(exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The session of the file computes wrong, so a constant that "mends" the graph would be a wrong cause."""
    runtime = open_.runtime()
    bert, wrong = exported("bert"), tmp_path / "model.onnx"
    faults.plant(bert.graph, logits_times(1.01), wrong)
    honest = runtime.InferenceSession

    def session(model: object, *given: object, **more: object) -> object:
        return honest(str(wrong) if model == str(bert.graph) else model, *given, **more)

    monkeypatch.setattr(runtime, "InferenceSession", session)
    with torch_once():
        report = tieconv.parity(bert.graph, bert.model, provider="cpu")
    assert report.verdict == "failed"
    assert report.reason == "the same graph passes in a second session: the first session or its device computed wrong"
