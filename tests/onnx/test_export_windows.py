"""Sliding windows: their length is in the graph, and a prompt longer than the window gives torch's logits."""

from __future__ import annotations

import copy
import types
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

from tests.cli.run import run

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from tests.onnx import exported  # noqa: E402
from tests.onnx.exported import ROWS  # noqa: E402
from tests.onnx.layouts.families import FAMILIES  # noqa: E402
from tieconv.onnx.export.adapter import fold_windows  # noqa: E402

WINDOW = 8
LENGTH = "past_key_values.layers.{}._sliding_window_tensor"


def scalar(name: str) -> ir.Value:
    return ir.Value(name=name, shape=ir.Shape([]), type=ir.TensorType(ir.DataType.INT64))


def cache_of(*windows: int | None) -> Any:
    layers = [types.SimpleNamespace(keys=None) for _ in windows]
    for layer, window in zip(layers, windows, strict=True):
        if window is not None:
            layer._sliding_window_tensor = torch.tensor(window)
    return types.SimpleNamespace(layers=layers)


def test_a_length_becomes_a_constant(tmp_path: Path) -> None:
    """Each layer computes with its own window, and the outputs that repeat a length are gone."""
    ids = scalar("input_ids")
    lengths = [scalar("input." + LENGTH.format(layer)) for layer in (0, 2)]
    sums = [ir.node("Add", [ids, length]) for length in lengths]
    last = ir.node("Sub", [sums[0].outputs[0], sums[1].outputs[0]])
    repeats = [ir.node("Identity", [length]) for length in lengths]
    for node, layer in zip(repeats, (0, 2), strict=True):
        node.outputs[0].name = "output." + LENGTH.format(layer)
    last.outputs[0].name = "logits"
    nodes = [*sums, last, *repeats]
    for node in nodes:
        node.outputs[0].shape, node.outputs[0].type = ir.Shape([]), ir.TensorType(ir.DataType.INT64)
    outputs = [repeats[0].outputs[0], last.outputs[0], repeats[1].outputs[0]]
    graph = ir.Graph([ids, *lengths], outputs, nodes=nodes, opset_imports={"": 20}, name="g")
    model = ir.Model(graph, ir_version=10)

    assert fold_windows(model, cache_of(16, None, 4)) == {0: 16, 2: 4}
    assert [value.name for value in graph.inputs] == ["input_ids"]
    assert [value.name for value in graph.outputs] == ["logits"]
    ir.save(model, tmp_path / "g.onnx")
    session = ort.InferenceSession(tmp_path / "g.onnx", providers=["CPUExecutionProvider"])
    assert session.run(None, {"input_ids": np.array(5)})[0] == 12


def test_a_graph_without_windows_is_unchanged() -> None:
    """A cache without windows, and a model without a cache, leave the graph as it is."""
    for cache in (cache_of(None, None), None):
        ids = scalar("input_ids")
        unused = ir.node("Identity", [ids])
        model = ir.Model(ir.Graph([ids], [ids], nodes=[unused], opset_imports={"": 20}), ir_version=10)
        assert fold_windows(model, cache) == {}
        assert len(model.graph) == 1


def _slow(name: str) -> Any:
    return pytest.param(name, marks=pytest.mark.slow)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gemma2", _slow("mistral"), _slow("gemma3"), _slow("gpt-oss")])
def test_prompts_longer_than_the_window(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph has the usual inputs; prompt and later steps agree with torch far behind the window."""
    monkeypatch.setattr(exported, "MODELS", FAMILIES)
    model = exported.make(name)
    assert model.config.sliding_window in (WINDOW, 2 * WINDOW)
    model.save_pretrained(tmp_path / "model")
    result = run("export --provider cpu", tmp_path / "model", "-o", tmp_path / "out")
    assert result.exit_code == 0, result.output
    session = ort.InferenceSession(tmp_path / "out" / "model.onnx", providers=["CPUExecutionProvider"])
    caches = [entry.name for entry in session.get_inputs() if entry.name.startswith("input.past_key_values.layers.")]
    assert {entry.name for entry in session.get_inputs()} == {
        "input_ids", "attention_mask", "position_ids", *caches,
    }  # fmt: skip
    assert all(name.endswith((".keys", ".values")) for name in caches)
    assert [entry.name for entry in session.get_outputs()] == [
        "logits", *(name.replace("input.", "output.") for name in caches),
    ]  # fmt: skip

    ids = torch.randint(0, ROWS, (2, 6 * WINDOW), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        wanted = model(input_ids=ids).logits.numpy()
        ignored = without_window(model)(input_ids=ids).logits.numpy()
    assert np.abs(ignored - wanted)[:, 2 * WINDOW :].max() > 0.1 * np.abs(wanted).max()  # the comparison sees a window
    got = stepped(session, ids.numpy(), (5 * WINDOW, 1, 3, 1), caches)
    assert np.abs(got - wanted[:, : got.shape[1]]).max() < 1e-4 * np.abs(wanted).max()


def without_window(model: Any) -> Any:
    """The same weights, and a window longer than any prompt."""
    config = copy.deepcopy(model.config)
    config.sliding_window = 1000
    wide = type(model)(config).eval()
    wide.load_state_dict(model.state_dict())
    return wide


def stepped(session: Any, ids: Any, pieces: tuple[int, ...], caches: list[str]) -> Any:
    """The logits of a prompt and of pieces after it, each with the cache of the one before."""
    past = {name: np.zeros((2, 2, 0, 8), np.float32) for name in caches}
    logits, start = [], 0
    for length in pieces:
        end = start + length
        feeds = {
            "input_ids": ids[:, start:end],
            "attention_mask": np.ones((2, end), np.int64),
            "position_ids": np.tile(np.arange(start, end), (2, 1)),
        }
        made, *presents = session.run(None, feeds | past)
        logits.append(made)
        past = dict(zip(caches, presents, strict=True))
        start = end
    return np.concatenate(logits, 1)


def test_transformers_runs_the_graph(tmp_path: Path) -> None:
    """`ExportedModel` loads a graph with folded windows, and feeds its cache back."""
    from transformers.exporters import ExportedModel

    model = exported.make("gemma2")
    model.save_pretrained(tmp_path / "model")
    assert run("export --provider cpu --no-parity", tmp_path / "model", "-o", tmp_path / "out").exit_code == 0
    ids = torch.randint(0, ROWS, (2, 4 * WINDOW), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        wanted = model(input_ids=ids).logits
    cache = transformers.DynamicCache(config=model.config)
    for layer in cache.layers:
        layer.keys = layer.values = torch.zeros(2, 2, 0, 8)
        layer.is_initialized, layer.dtype, layer.device = True, torch.float32, torch.device("cpu")
    loaded, start = ExportedModel.from_pretrained(tmp_path / "out"), 0
    for end in (3 * WINDOW, 3 * WINDOW + 2):
        made = loaded(
            input_ids=ids[:, start:end],
            attention_mask=torch.ones(2, end, dtype=torch.int64),
            position_ids=torch.arange(start, end).repeat(2, 1),
            past_key_values=cache,
        )
        assert (made.logits - wanted[:, start:end]).abs().max() < 1e-4 * wanted.abs().max()
        cache, start = made.past_key_values, end
