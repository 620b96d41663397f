"""The parts of an export: ties made one parameter, axes by name, what is traced with, and an exporter that moved."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest

import tieconv
from tests.cli.run import refused
from tieconv.onnx.export import adapter as export_adapter
from tieconv.onnx.export.adapter import name_axes
from tieconv.onnx.export.carry_out import join_ties, tied_names
from tieconv.onnx.export.sample_inputs import kind_of, sample
from tieconv.reference import Reference, load, load_config

torch = pytest.importorskip("torch")


def loaded(directory: Path) -> Reference:
    return load(str(directory), json.loads((directory / "config.json").read_text()), "float32")


@pytest.mark.parametrize("name", ["llama-duplicated", "llama-tied", "llama-tied-sharded", "gemma"])
def test_a_tied_pair_becomes_one_parameter(models: Path, name: str) -> None:
    """Whatever the loader made of a pair with equal bytes, head and embedding are then the same object."""
    reference = loaded(models / name)
    model = reference.model
    model.lm_head.weight = torch.nn.Parameter(model.get_input_embeddings().weight.detach().clone())
    joined = join_ties(model, tieconv.inspect(models / name))
    assert joined == (("model.embed_tokens.weight", "lm_head.weight"),)
    assert model.lm_head.weight is model.get_input_embeddings().weight


def test_other_names_of_the_base_model(models: Path) -> None:
    """A checkpoint without the base model's prefix names the same parameters."""
    model = loaded(models / "gpt2-unprefixed").model
    model.lm_head.weight = torch.nn.Parameter(model.transformer.wte.weight.detach().clone())
    join_ties(model, tieconv.inspect(models / "gpt2-unprefixed"))
    assert model.lm_head.weight is model.transformer.wte.weight


@pytest.mark.parametrize("name", ["llama-untied", "llama-diverged"])
def test_other_pairs_stay_two(models: Path, name: str) -> None:
    """Tensors that differ are not joined."""
    evidence = tieconv.inspect(models / name)
    assert tied_names(evidence) == ()
    model = loaded(models / "llama-untied").model
    assert join_ties(model, evidence) == ()
    assert model.lm_head.weight is not model.model.embed_tokens.weight


def test_a_loader_that_changed_a_copy_is_seen(models: Path) -> None:
    """Equal in the checkpoint and different in memory, if by the sign of one zero: not joined."""
    model = loaded(models / "llama-duplicated").model
    other = model.model.embed_tokens.weight.detach().clone()
    model.model.embed_tokens.weight.data[0, 0] = 0.0
    other[0, 0] = -0.0
    model.lm_head.weight = torch.nn.Parameter(other)
    join_ties(model, tieconv.inspect(models / "llama-duplicated"))
    assert model.lm_head.weight is not model.model.embed_tokens.weight


@pytest.mark.parametrize("name", ["llama-tied", "bert-mlm", "t5", "bart"])
def test_no_side_of_a_sample_is_frozen_or_joined(models: Path, name: str) -> None:
    """Sides of 1 and sides that are equal by chance are what a tracer makes constant: there are none."""
    reference = loaded(models / name)
    kind = kind_of(reference.model)
    given = sample(reference, kind, load_config(str(models / name)))
    assert "attention_mask" in given
    for value in given.values():
        if isinstance(value, torch.Tensor):
            assert value.shape[0] == 2
            assert value.shape[1] not in (1, 2)
    if name == "llama-tied":
        (layer, *_) = given["past_key_values"].layers
        sides = {given["input_ids"].shape[1], layer.keys.shape[2], given["attention_mask"].shape[1]}
        assert len(sides) == 3
        assert given["position_ids"].shape == given["input_ids"].shape


def test_axes_have_names() -> None:
    """The tracer's symbols are named after the inputs, within sums and inside the graph too; sizes stay."""

    def value(name: str, *shape: int | str) -> ir.Value:
        return ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(ir.DataType.INT64))

    inputs = [
        value("input_ids", "s44", "s70"),
        value("attention_mask", "s43", "s53"),
        value("input.past_key_values.layers.0.keys", "s44", 2, "s36", 8),
    ]
    node = ir.node("Identity", [inputs[0]])
    node.outputs[0].shape = ir.Shape(["s44", "s36 + s70", "s9", "7"])
    graph = ir.Graph(inputs, [node.outputs[0]], nodes=[node], opset_imports={"": 20})
    name_axes(ir.Model(graph, ir_version=10))
    assert [str(found.shape) for found in inputs] == [
        "[batch,sequence]",
        "[batch,past_sequence + sequence]",
        "[batch,2,past_sequence,8]",
    ]
    assert str(node.outputs[0].shape) == "[batch,past_sequence + sequence,s9,7]"


def exporters(monkeypatch: pytest.MonkeyPatch, **names: Any) -> None:
    module = types.ModuleType("transformers.exporters")
    module.__dict__.update(names)
    monkeypatch.setitem(sys.modules, "transformers.exporters", module)


class _Config:
    def __init__(self, dynamic: bool, opset_version: int | None) -> None:
        self.dynamic = dynamic


class _Exporter:
    """The exporter as it is known."""

    def export(self, model: Any, kwargs: Any, config: Any) -> Any:
        raise ValueError("no such operator\nand much more")


class _Later:
    """One with other arguments."""

    def export(self, model: Any) -> Any:
        raise AssertionError("never called")


class _Other(_Exporter):
    """One that returns something else."""

    def export(self, model: Any, kwargs: Any, config: Any) -> Any:
        return object()


@pytest.mark.parametrize(
    ("names", "why"),
    [
        ({}, "has no exporters.OnnxExporter"),
        ({"OnnxExporter": _Later, "OnnxConfig": _Config}, "arguments differ"),
        ({"OnnxExporter": _Exporter, "OnnxConfig": object}, "arguments differ"),
        ({"OnnxExporter": _Other, "OnnxConfig": _Config}, "neither an ExportedModel nor an ONNXProgram"),
    ],
)
def test_an_exporter_that_moved(monkeypatch: pytest.MonkeyPatch, names: dict[str, Any], why: str) -> None:
    """The sentence names the installed version, the hint those that this was tried with."""
    import transformers

    exporters(monkeypatch, **names)
    with pytest.raises(tieconv.TieconvError, match=why) as caught:
        export_adapter.export_graph(None, {}, None)
    assert transformers.__version__ in caught.value.message
    assert "use a tested version (transformers 5.23.0" in caught.value.hint
    assert caught.value.code == "export.moved"


class _Program:
    """torch's ONNXProgram, which transformers 5.17 returns."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def save(self, path: str, *, external_data: bool) -> None:
        assert external_data
        ir.save(self.model, path, external_data=f"{Path(path).name}.data")


class _Earlier(_Exporter):
    def export(self, model: Any, kwargs: Any, config: Any) -> Any:
        ids = ir.Value(name="input_ids", shape=ir.Shape(["s1", "s2"]), type=ir.TensorType(ir.DataType.INT64))
        node = ir.node("Identity", [ids])
        node.metadata_props["pkg.torch.onnx.stack_trace"] = "a line of modelling code"
        node.outputs[0].name = "logits"
        return _Program(ir.Model(ir.Graph([ids], node.outputs, nodes=[node], opset_imports={"": 20}), ir_version=10))


def test_an_exporter_that_gives_a_program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """transformers 5.17 gives torch's ONNXProgram: axes are named and notes go all the same, and it has no document."""
    exporters(monkeypatch, OnnxExporter=_Earlier, OnnxConfig=_Config)
    made = export_adapter.export_graph(None, {}, None)
    assert export_adapter.save(made, tmp_path) == {}
    graph = ir.load(tmp_path / "model.onnx").graph
    assert [str(side) for side in graph.inputs[0].shape or ()] == ["batch", "sequence"]
    assert not graph[0].metadata_props


def test_a_model_that_the_exporter_cannot_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own sentence, cut at the line, with the class and every version."""
    exporters(monkeypatch, OnnxExporter=_Exporter, OnnxConfig=_Config)
    with pytest.raises(tieconv.TieconvError) as caught:
        export_adapter.export_graph(torch.nn.Linear(1, 1), {}, None)
    assert caught.value.message == "transformers' exporter cannot export Linear: ValueError: no such operator"
    assert "tested with: transformers 5.23.0" in caught.value.hint


@pytest.mark.parametrize("package", ["torch", "transformers", "onnxscript", "onnxruntime"])
def test_a_missing_package(models: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, package: str) -> None:
    """One sentence and the pip command, also for the plan alone."""
    monkeypatch.setitem(sys.modules, package, None)
    assert f"needs the package {package}" in refused("export", models / "llama-tied")
    assert f"needs the package {package}" in refused("export", models / "llama-tied", "-o", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
