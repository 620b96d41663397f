"""Inputs that say how a graph runs: both branches of a merged decoder are measured, and all logits are kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import tieconv as api
from fixtures import exporters
from tests.onnx.test_grouped import failing
from tests.slow import fast_only
from tieconv.checkpoint.results.parity import Parity
from tieconv.errors import NotRunError, UnreadableError
from tieconv.onnx.ort_session import open_session
from tieconv.onnx.parity.bindings import Bindings, bind, faults, switched
from tieconv.onnx.parity.graph_file import Graph, Value, read_graph
from tieconv.onnx.parity.graph_forward import GraphModel
from tieconv.reference import Batch

LLAMA, GPT2 = (exporters.HERE / name / "decoder_model_merged.onnx" for name in ("merged-llama", "merged-gpt2"))
OPTIMUM = exporters.HERE / "optimum-llama" / "model.onnx"
OLD: dict[str, Any] = {"ir_version": 10, "opset_imports": [helper.make_opsetid("", 20)]}
"""Versions that every onnxruntime of this project takes."""


def parity(path: Path, name: str) -> Parity:
    return api.parity(path, exporters.HERE / "checkpoints" / name, provider="cpu")


def changed(source: Path, change: Callable[[onnx.GraphProto], None], target: Path) -> Path:
    model = onnx.load(source)
    change(model.graph)
    onnx.save(model, target)
    return target


def norm_of(branch: str) -> Callable[[onnx.GraphProto], None]:
    """The epsilon of the last norm, in one branch of the decoder."""

    def change(graph: onnx.GraphProto) -> None:
        (choice,) = (node for node in graph.node if node.op_type == "If")
        (inner,) = (attribute.g for attribute in choice.attribute if attribute.name == branch)
        for node in inner.node:
            if node.output[0] == "/model/norm/Constant_1_output_0":
                node.attribute[0].t.CopyFrom(numpy_helper.from_array(np.array(1e-5, np.float32)))

    return change


@pytest.mark.slow
@pytest.mark.parametrize(
    ("branch", "past"), fast_only([("then_branch", True), ("else_branch", False)], ["else_branch"])
)
def test_a_fault_in_one_branch_fails(tmp_path: Path, branch: str, past: bool) -> None:
    """First tokens run one branch, those after a past the other: each shape sees its own branch's fault alone."""
    report = parity(changed(LLAMA, norm_of(branch), tmp_path / "model.onnx"), "merged-llama")
    assert str(report.verdict) == "failed" and {"case_ratio", "rms_ratio"} <= failing(report)
    assert ("steps_rms_ratio" in failing(report)) == past
    assert {bool(case.past) for case in report.cases if case.ratio and case.ratio > 5} == {past}
    epsilon = "a norm of the graph has epsilon 1e-05, but the model's class has 1e-06"
    assert report.reason == f"{epsilon}; with it, the worst case passes"


@pytest.mark.slow
def test_both_branches_pass() -> None:
    """optimum's merged decoder is healthy, with and without a past, padded and not; the report says how it was fed."""
    report = parity(LLAMA, "merged-llama")
    assert (str(report.verdict), failing(report)) == ("passed", set())
    assert report.structure is not None
    (note,) = report.structure.notes
    assert note.startswith("use_cache_branch was false for the first tokens of a sequence")
    assert {(bool(case.past), bool(case.padding)) for case in report.cases} == {(p, q) for p in (0, 1) for q in (0, 1)}


@pytest.mark.slow
def test_positions_that_count_the_padding() -> None:
    """GPT-2 without position_ids is wrong for padded rows, and for those alone; the reason says so."""
    report = parity(GPT2, "merged-gpt2")
    assert str(report.verdict) == "failed"
    assert {bool(case.padding) for case in report.cases if case.ratio and case.ratio > 5} == {True}
    assert report.reason == (
        "only rows with left padding are wrong: the graph has no position_ids and counts the padding too"
    )


def keep(graph: onnx.GraphProto) -> None:
    """Logits of the last positions alone, as many as the new input says."""
    (output,) = (value for value in graph.output if value.name == "logits")
    for node in graph.node:
        for place, name in enumerate(node.output):
            if name == "logits":
                node.output[place] = "all logits"
    graph.input.append(helper.make_tensor_value_info("num_logits_to_keep", TensorProto.INT64, []))
    graph.initializer.append(numpy_helper.from_array(np.array([-1]), "flat"))
    graph.initializer.append(numpy_helper.from_array(np.array([2**62]), "end"))
    graph.initializer.append(numpy_helper.from_array(np.array([1]), "axis"))
    graph.node.append(helper.make_node("Neg", ["num_logits_to_keep"], ["from"]))
    graph.node.append(helper.make_node("Reshape", ["from", "flat"], ["from one"]))
    graph.node.append(helper.make_node("Slice", ["all logits", "from one", "end", "axis"], ["logits"]))
    output.type.tensor_type.shape.dim[1].dim_param = "kept"


def places(graph: onnx.GraphProto) -> None:
    """Position ids from the places in the cache, less the padding before them."""
    graph.input.append(helper.make_tensor_value_info("cache_position", TensorProto.INT64, ["sequence_length"]))
    (given,) = (value for value in graph.input if value.name == "position_ids")
    graph.input.remove(given)
    graph.initializer.append(numpy_helper.from_array(np.array([1]), "one axis"))
    graph.initializer.append(numpy_helper.from_array(np.array(1), "one"))
    graph.initializer.append(numpy_helper.from_array(np.array(0), "none"))
    for at, node in enumerate([
        helper.make_node("Sub", ["one", "attention_mask"], ["padding"]),
        helper.make_node("ReduceSum", ["padding", "one axis"], ["rows"], keepdims=1),
        helper.make_node("Sub", ["cache_position", "rows"], ["counted"]),
        helper.make_node("Max", ["counted", "none"], ["position_ids"]),
    ]):  # fmt: skip
        graph.node.insert(at, node)


@pytest.mark.parametrize("change", fast_only([keep, places], [places]))
def test_a_graph_with_a_switch_passes(tmp_path: Path, change: Callable[[onnx.GraphProto], None]) -> None:
    """0 keeps every logit; the places count on through the cache: the healthy graph stays healthy, at every shape."""
    report = parity(changed(OPTIMUM, change, tmp_path / "model.onnx"), "optimum-llama")
    assert (str(report.verdict), failing(report)) == ("passed", set())
    assert report.structure is not None and len(report.structure.notes) == 1


def test_places_of_an_encoder_decoder_are_the_decoders(tmp_path: Path) -> None:
    """A graph of both has a place for each token of the decoder, however many the encoder has."""
    names = ("input_ids", "decoder_input_ids", "cache_position")
    axes = (["b", "encoder"], ["b", "decoder"], ["decoder"])
    inputs = [helper.make_tensor_value_info(*pair) for pair in zip(names, [TensorProto.INT64] * 3, axes, strict=True)]
    nodes = [
        helper.make_node("Add", names[1:], ["placed"]),
        helper.make_node("Unsqueeze", ["placed", "last"], ["wide"]),
        helper.make_node("Cast", ["wide"], ["logits"], to=TensorProto.FLOAT),
    ]
    output = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["b", "decoder", 1])
    last = numpy_helper.from_array(np.array([2]), "last")
    made = helper.make_model(helper.make_graph(nodes, "both", inputs, [output], [last]), **OLD)
    onnx.save(made, tmp_path / "model.onnx")
    bindings = bind(read_graph(str(tmp_path / "model.onnx")), masked=False)
    model = GraphModel(open_session(tmp_path / "model.onnx", "cpu"), bindings)
    ids = torch.zeros(2, 7, dtype=torch.int64)
    found = model.logits(Batch(ids, ids + 1, decoder_ids=torch.tensor([[5, 5, 5], [0, 0, 0]])))
    assert found[..., 0].tolist() == [[5, 6, 7], [0, 1, 2]]


def bound(*inputs: Value) -> Bindings:
    ids = Value("input_ids", "INT64", ("b", "s"))
    return bind(Graph("g.onnx", 20, (ids, *inputs), (Value("logits", "FLOAT", ()),), (), None), masked=False)


@pytest.mark.parametrize(
    "value",
    [
        Value("use_cache_branch", "BOOL", (1,)),  # and no cache
        Value("num_logits_to_keep", "FLOAT", ()),
        Value("num_logits_to_keep", "INT64", (2,)),
        Value("cache_position", "INT64", ("b", "s")),
    ],
)
def test_what_is_no_switch(value: Value) -> None:
    """Another type, other axes, or a branch without a cache: the error names the input."""
    with pytest.raises(UnreadableError, match=value.name):
        bound(value)


def test_embeddings_from_elsewhere_are_not_run() -> None:
    """A graph that begins behind the embedding is half of a model."""
    with pytest.raises(NotRunError, match="a decoder without its embedding: another graph computes its inputs_embeds"):
        bound(Value("inputs_embeds", "FLOAT", ("b", "s", 8)))


def test_a_fixed_place_is_a_fault() -> None:
    """cache_position of one length runs that many tokens alone."""
    assert not [told for told in faults(bound(Value("cache_position", "INT64", ("s",)))) if "cache_position" in told]
    (told,) = (t for t in faults(bound(Value("cache_position", "INT64", (4,)))) if "cache_position" in t)
    assert told == "the sequence axis (0) of the input cache_position is fixed at 4"


@pytest.mark.parametrize("shape", [(), (1,)])
def test_what_is_fed(shape: tuple[int, ...]) -> None:
    """The branch follows the past, no logits are cut, places begin where the cache ends."""
    branch, kept = Value("use_cache_branch", "BOOL", shape), Value("logits_to_keep", "INT32", shape)
    assert [switched(branch, start, 9).tolist() for start in (0, 4)] == [np.full(shape, on).tolist() for on in (0, 1)]
    assert (switched(kept, 4, 9).shape, switched(kept, 4, 9).dtype, switched(kept, 4, 9).sum()) == (shape, np.int32, 0)
    assert switched(Value("cache_position", "INT64", ("s",)), 4, 9).tolist() == [4, 5, 6, 7, 8]


def test_types_go_with_their_tokens() -> None:
    """Token types of a decoder with a cache are cut like its ids."""
    ids = torch.arange(12).reshape(2, 6)
    cut = Batch(ids, torch.ones_like(ids), types=ids % 2).until(4)
    assert cut.types.tolist() == (ids % 2)[:, :4].tolist() and cut.ids.shape == cut.mask.shape == (2, 4)
