"""Graphs on `GroupQueryAttention`, as onnxruntime-genai builds them: fed as they are run, and judged like any other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import tieconv as api
from fixtures import exporters
from tests.lazy import batches, bindings, ort_session, torch
from tests.loops import case
from tests.onnx.graphs import open_cache
from tests.slow import fast_only
from tieconv.checkpoint.results.parity import Parity
from tieconv.onnx.parity.graph_file import read_graph
from tieconv.reference.model import Batch

QWEN, GEMMA = (exporters.HERE / name / "model.onnx" for name in ("genai-qwen2", "genai-gemma2"))


def parity(path: Path) -> Parity:
    name = "genai-gemma2" if "gemma2" in str(path) else "genai-qwen2"
    return api.parity(path, exporters.HERE / "checkpoints" / name, provider="cpu")


def changed(source: Path, change: Callable[[onnx.GraphProto], None], folder: Path) -> Path:
    """The graph with a change, in a directory named as its model."""
    model = onnx.load(source)
    change(model.graph)
    target = folder / source.parent.name / "model.onnx"
    target.parent.mkdir(parents=True)
    onnx.save(model, target)
    return target


def failing(report: Parity) -> set[str]:
    return {gate.name for gate in report.gates if not gate.passed}


def test_a_healthy_graph_is_fed_as_it_runs() -> None:
    """Padding behind the tokens, chunks after a past in one row; the report says so, and nine shapes are measured."""
    report = parity(QWEN)
    assert (str(report.verdict), failing(report)) == ("passed", set())
    assert report.structure is not None
    width, fed = report.structure.notes
    assert width == "2 caches leave the width open: parity fed the config's width, 16"
    assert "parity padded on the right, never on the left" in fed
    padded = [case for case in report.cases if case.padding]
    assert {case.group for case in padded} == {"right padding", "cached steps"}
    assert all(case.batch == 1 for case in report.cases if case.past and case.sequence > 1 and case.sequence != 32)
    assert len({(case.batch, case.sequence, case.past, case.padding) for case in report.cases}) == 19


def ignore_mask(graph: onnx.GraphProto) -> None:
    """Every row counted as if it had no padding."""
    (count,) = (node for node in graph.node if node.op_type == "ReduceSum")
    one = numpy_helper.from_array(np.array([1], np.int64))
    graph.node.insert(0, helper.make_node("ConstantOfShape", ["mask shape"], ["ones"], value=one))
    graph.node.insert(0, helper.make_node("Shape", ["attention_mask"], ["mask shape"]))
    count.input[0] = "ones"


def attributes(graph: onnx.GraphProto, name: str) -> list[onnx.AttributeProto]:
    return [attribute for node in graph.node for attribute in node.attribute if attribute.name == name]


def epsilon(graph: onnx.GraphProto) -> None:
    for attribute in attributes(graph, "epsilon"):
        attribute.f = 1e-5


def rope(graph: onnx.GraphProto) -> None:
    """The first positions turned by 1 % more."""
    tables = {weight.name: weight for weight in graph.initializer if weight.name in ("cos_cache", "sin_cache")}
    angle = np.arctan2(*(numpy_helper.to_array(tables[name]) for name in ("sin_cache", "cos_cache")))
    for name, made in (("cos_cache", np.cos), ("sin_cache", np.sin)):
        tables[name].CopyFrom(numpy_helper.from_array(made(angle * 1.01).astype("f4"), name))


@pytest.mark.parametrize("fault", fast_only([ignore_mask, epsilon, rope], [ignore_mask]))
def test_faults_fail(tmp_path: Path, fault: Callable[[onnx.GraphProto], None]) -> None:
    """Padding counted as tokens, another epsilon, other rotations: each fails by its logits."""
    report = parity(changed(QWEN, fault, tmp_path))
    assert str(report.verdict) == "failed"
    assert {"case_ratio", "steps_rms_ratio"} <= failing(report)
    assert "structure" not in failing(report) and "runs" not in failing(report)


def scale(graph: onnx.GraphProto) -> None:
    """The square root of 32 in the place of 5.66."""
    wanted = numpy_helper.from_array(np.array(32**0.5, np.float32))
    (node,) = (node for node in graph.node if "5.66" in node.output[0])
    (value,) = node.attribute
    value.t.CopyFrom(wanted)


def narrower(graph: onnx.GraphProto) -> None:
    scale(graph)
    for attribute in attributes(graph, "local_window_size"):
        attribute.i = 31


@pytest.mark.slow
def test_a_windowed_cache(tmp_path: Path) -> None:
    """It has its capacity from the start and takes no padding. The builder's 5.66 for √32 fails; mended it passes."""
    found = parity(GEMMA)
    assert str(found.verdict) == "failed" and {"rms_ratio", "steps_rms_ratio"} <= failing(found)
    assert "is 5.66, but the model has 5.65685" in found.reason and "norm" not in found.reason
    report = parity(changed(GEMMA, scale, tmp_path))
    assert (str(report.verdict), failing(report), report.reason) == ("passed", set(), "")
    assert report.structure is not None
    assert "parity fed no padding" in report.structure.notes[1]
    assert report.structure.notes[2] == "caches with a window had 32 positions from the start"
    assert not any(case.padding for case in report.cases)
    assert any(case.batch > 1 and case.past for case in report.cases)


def test_a_narrower_window_fails(tmp_path: Path) -> None:
    """One position less in the window is seen where the tokens fill it, and nowhere else."""
    report = parity(changed(GEMMA, narrower, tmp_path))
    assert "steps_rms_ratio" in failing(report)
    assert {case.past + case.sequence for case in report.cases if case.ratio and case.ratio > 5} == {32, 37, 40, 64}
    assert report.reason == ""


def whole(graph: onnx.GraphProto) -> None:
    scale(graph)
    for attribute in attributes(graph, "sliding_window_cache"):
        attribute.i = 0


@pytest.mark.slow
def test_a_window_over_a_whole_cache(tmp_path: Path) -> None:
    """A window of attention alone makes no windowed cache: it grows from nothing and takes padding."""
    path = changed(GEMMA, whole, tmp_path)
    assert set(bindings.grouped_caches(read_graph(str(path))).values()) == {0}
    report = parity(path)
    assert (str(report.verdict), failing(report)) == ("passed", set())
    assert any(case.padding for case in report.cases)


def test_which_caches_are_grouped() -> None:
    """By the operator's own inputs: without a window none is there before the first token."""
    names = {f"past_key_values.0.{part}" for part in ("key", "value")}
    assert bindings.grouped_caches(read_graph(str(QWEN))) == dict.fromkeys(names, 0)
    assert bindings.grouped_caches(read_graph(str(GEMMA))) == dict.fromkeys(names, 32)
    assert bindings.grouped_caches(read_graph(str(exporters.HERE / "mobius-llama" / "model.onnx"))) == {}


def test_a_width_that_nothing_tells_fails() -> None:
    """A cache without a width, and a config without one: the structure's fault, as before."""
    graph = open_cache()
    assert [fault for fault in bindings.faults(bindings.bind(graph, masked=False)) if "no fixed length" in fault]
    assert not list(bindings.faults(bindings.bind(graph, masked=False, width=16)))
    assert bindings.bind(graph, masked=False, width=16).caches[0].past.shape == ("b", 2, "p", 16)


def test_padding_behind_and_back() -> None:
    """Tokens keep their order and positions; logits come back to the places of the mask."""
    mask = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
    batch = Batch(torch.tensor([[9, 9, 1, 2], [3, 4, 5, 6]]), mask)
    turned = bindings.behind(batch, 0)
    assert turned.ids.tolist() == [[1, 2, 9, 9], [3, 4, 5, 6]]
    assert turned.mask.tolist() == [[1, 1, 0, 0], [1, 1, 1, 1]]
    assert turned.positions.tolist() == [[0, 1, 1, 1], [0, 1, 2, 3]]
    back = bindings.in_front(turned.ids[..., None], mask)[..., 0]
    assert torch.equal(back[mask.bool()], batch.ids[mask.bool()])
    later = bindings.behind(batch, 3)
    assert later.ids[:, 3:].tolist() == [[2], [6]]
    assert (later.mask.tolist(), later.positions[:, 3:].tolist()) == (turned.mask.tolist(), [[1], [3]])


def test_cells_of_each_padding() -> None:
    """At least 8 shapes with 3 seeds and a past in several rows; padding and chunks only where they can be fed."""
    for where in bindings.Padding:
        with case(where):
            made = list(batches.cells(bindings.Kind.CACHED, 1 << 20, where))
            shapes = {(cell.batch, cell.sequence, cell.past, cell.padding) for cell in made}
            assert len(shapes) >= 8 and len(made) == 3 * len(shapes)
            assert any(cell.batch > 1 and cell.past for cell in made)
            assert any(cell.padding for cell in (*made, *batches.stepped(40, where))) == (
                where is not bindings.Padding.NONE
            )
            chunks = {cell.batch for cell in made if cell.past and cell.sequence > 1}
            assert (chunks == {1}) == (where is not bindings.Padding.FRONT)
            assert {cell.padding for cell in batches.stepped(40, where)} == (
                {0} if where is bindings.Padding.NONE else {2}
            )


@pytest.mark.parametrize("dtype", ["FLOAT", "FLOAT16", "BFLOAT16", "DOUBLE"])
def test_what_was_never_written_is_zero(dtype: str) -> None:
    """A cache with positions before the first token holds zeros, not what lay in memory."""
    made = ort_session.open_session(str(QWEN), "cpu", precision="float32").empty((2, 3, 32, 16), dtype)
    bits = made.numpy() if dtype != "BFLOAT16" else torch.from_dlpack(made._ortvalue.to_dlpack()).view(torch.int16)
    assert not bits.any()
    assert made.shape() == [2, 3, 32, 16]
