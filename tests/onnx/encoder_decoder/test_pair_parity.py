"""Parity of an encoder and a decoder with caches: healthy graphs pass, a fault in either graph is caught."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, helper, numpy_helper
from onnxruntime.quantization import quantize_dynamic

import tieconv
from tests.cli.run import refused, run
from tests.onnx import faults
from tests.onnx.encoder_decoder.conftest import Pairs
from tests.slow import fast_only
from tieconv.checkpoint.results.parity import Parity, Verdict

DECODER, ENCODER = "decoder_model_merged.onnx", "encoder_model.onnx"
STEPS = {"steps_rms_ratio", "steps_max_ratio"}
SINGLE = {"rms_ratio", "max_ratio"}
Fault = Callable[[ModelProto], None]


def branch(model: ModelProto, name: str) -> onnx.GraphProto:
    """A branch of the decoder's `If`."""
    node = next(node for node in model.graph.node if node.op_type == "If")
    return next(attribute.g for attribute in node.attribute if attribute.name == name)


def swapped_layers(model: ModelProto) -> None:
    """A step reads the keys of the encoder's tokens of the other layer."""
    nodes = {node.input[0]: node for node in branch(model, "then_branch").node}
    first, second = (nodes[f"past_key_values.{layer}.encoder.key"] for layer in (0, 1))
    first.input[0], second.input[0] = second.input[0], first.input[0]


def stale(model: ModelProto) -> None:
    """The first pass returns the cross-attention's keys of the rows in another order, but uses the right ones."""
    turn(model, "present.0.encoder.key")


def stale_after_a_step(model: ModelProto) -> None:
    """A step returns a cross-attention cache that differs from what it got."""
    graph = branch(model, "then_branch")
    (node,) = [node for node in graph.node if node.input[0] == "past_key_values.1.encoder.value"]
    node.op_type = "Neg"


def turn(model: ModelProto, output: str) -> None:
    """Give the output in the reverse order of rows."""
    for value in model.graph.output:
        if value.name == output:
            value.name = "turned"
    model.graph.node.append(turned(model, output, "turned"))
    rename(model, output, "inner")
    for value in model.graph.output:
        if value.name == "turned":
            value.name = output
    model.graph.node[-1].output[0] = output


def turned(model: ModelProto, name: str, to: str) -> onnx.NodeProto:
    for index, number in enumerate((-1, -(2**31), 0, -1)):
        model.graph.initializer.append(numpy_helper.from_array(np.array([number], np.int64), f"{to}_{index}"))
    return helper.make_node("Slice", [name, *(f"{to}_{index}" for index in range(4))], [to])


def rename(model: ModelProto, old: str, new: str) -> None:
    """Rename a value of the main graph."""
    for node in model.graph.node:
        node.input[:] = [new if name == old else name for name in node.input]
        node.output[:] = [new if name == old else name for name in node.output]


def another_row(model: ModelProto) -> None:
    """The self-attention reads the cache of another row."""
    name = "past_key_values.0.decoder.key"
    rename(model, name, "of_another_row")
    model.graph.node.insert(0, turned(model, name, "of_another_row"))


def step_without_mask(model: ModelProto) -> None:
    """A step reads ones instead of the mask of the encoder's tokens."""
    rename(model, "encoder_attention_mask", "used_mask")
    one = helper.make_tensor("one", onnx.TensorProto.INT64, [1], [1])
    for node in (
        helper.make_node("Where", ["use_cache_branch", "all_ones", "encoder_attention_mask"], ["used_mask"]),
        helper.make_node("ConstantOfShape", ["mask_shape"], ["all_ones"], value=one),
        helper.make_node("Shape", ["encoder_attention_mask"], ["mask_shape"]),
    ):
        model.graph.node.insert(0, node)


def weight(model: ModelProto) -> None:
    """One number of a matrix differs."""
    tensor = next(tensor for tensor in model.graph.initializer if len(tensor.dims) == 2 and tensor.dims[0] == 1021)
    values = numpy_helper.to_array(tensor).copy()
    values[7, 3] += 0.5
    tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))


FAULTS: dict[str, tuple[str, Fault, set[str]]] = {
    "cross cache of another layer": (DECODER, swapped_layers, STEPS),
    "first pass returns another row's cross cache": (DECODER, stale, STEPS),
    "step returns another cross cache": (DECODER, stale_after_a_step, STEPS),
    "self cache of another row": (DECODER, another_row, STEPS),
    "step ignores the encoder's padding": (DECODER, step_without_mask, STEPS),
    "encoder ignores its padding": (ENCODER, faults.mask_dropped, SINGLE | STEPS),
    "one weight of the encoder": (ENCODER, weight, {"graph_weights", "token_lookup"}),
}


def planted(made: Path, file: str, fault: Fault, to: Path) -> Path:
    shutil.copytree(made, to)
    faults.plant(made / file, fault, to / file)
    return to


def failed(report: Parity) -> set[str]:
    return {gate.name for gate in report.gates if not gate.passed}


@pytest.mark.slow
def test_a_healthy_pair_passes(pairs: Pairs) -> None:
    """One report for both graphs: weights, single passes, steps over padding of every kind, free runs, every id."""
    made = pairs("t5")
    report = tieconv.parity(made.graph, made.model, provider="cpu")
    assert report.verdict is Verdict.PASSED, failed(report)
    assert report.identity is not None
    assert (report.identity.copies, report.identity.found) == (1, report.identity.tensors)
    stepped = [case for case in report.cases if case.group == "cached steps"]
    assert len(stepped) >= 6
    assert {case.batch for case in stepped} >= {2, 3}
    assert all(case.padding for case in stepped)
    assert report.metrics is not None
    assert {gate.name for gate in report.gates} >= {*STEPS, *SINGLE, "token_lookup", "weights", "graph_weights"}
    assert report.structure is not None
    assert "encoder_model.onnx: input_ids" in report.structure.inputs


@pytest.mark.slow
@pytest.mark.parametrize("name", fast_only(FAULTS, ["step ignores the encoder's padding"]))
def test_faults(pairs: Pairs, tmp_path: Path, name: str) -> None:
    """Each fault fails by the gates meant for it. One in a step leaves the single passes right."""
    file, fault, gates = FAULTS[name]
    made = pairs("t5")
    report = tieconv.parity(planted(made.graph, file, fault, tmp_path / "out"), made.model, provider="cpu")
    assert report.verdict is Verdict.FAILED
    assert failed(report) & gates == gates, failed(report)
    if gates == STEPS:
        assert not failed(report) & SINGLE


def test_a_quantised_pair_is_refused(pairs: Pairs) -> None:
    """`--quantised` takes one graph."""
    made = pairs("t5")
    sentence = refused("parity --quantised", made.graph, made.model)
    assert "--quantised measures one graph, not an encoder and a decoder" in sentence
    hint = run("parity --quantised", made.graph, made.model).stderr.splitlines()[1]
    assert f"tieconv parity {made.graph} {made.model}" in hint
    assert f"tieconv export {made.model} -o OUT --quantise int8" in hint


@pytest.mark.parametrize("file", [ENCODER, DECODER])
def test_a_pair_that_was_quantised_is_refused(pairs: Pairs, tmp_path: Path, file: str) -> None:
    """Without `--quantised` the sentence says what is quantised, and the hint does not lead back to it."""
    made = pairs("t5")
    out = shutil.copytree(made.graph, tmp_path / "out")
    logging.disable(logging.WARNING)
    try:
        quantize_dynamic(str(made.graph / file), str(out / file))
    finally:
        logging.disable(logging.NOTSET)
    sentence = refused("parity", out, made.model)
    assert "parity cannot measure" in sentence
    hint = run("parity", out, made.model).stderr.splitlines()[1]
    assert hint.startswith("hint: give the pair before quantization")
    assert "--quantised" not in hint


def test_half_a_pair_is_not_measured(pairs: Pairs, tmp_path: Path) -> None:
    """A decoder alone is no model: the hint says to give the directory."""
    made = pairs("t5")
    report = tieconv.parity(made.graph / DECODER, made.model, provider="cpu")
    assert report.verdict is Verdict.NOT_RUN
    assert "tieconv parity DIR MODEL" in (report.hint or "")
