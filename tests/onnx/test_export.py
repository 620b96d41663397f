"""`tieconv export`: one graph, the tied matrix once, measured before it gets its name; all of it or nothing."""

from __future__ import annotations

import copy
import errno
import json
import shutil
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import tieconv
from tests.cli.run import ok, refused, run
from tests.cli.stored import configure, editing, snapshot
from tests.lazy import adapter, adapter as export_adapter, bindings, carry_out, ir, load_file, sample_inputs, torch
from tests.onnx import faults, recorded
from tests.onnx.conftest import Replay
from tests.onnx.exported import CACHE, ROWS, WIDTH, Exported
from tests.onnx.graphs import copies
from tests.schemas import validate
from tieconv.errors import RefusedError, WriteFailedError
from tieconv.reference.model import Reference, load, load_config
from tieconv.reporters.html.parity_page import render as render_page
from tieconv.reporters.text.parity_text import render_parity


def embeddings(model: Path) -> list[Any]:
    """The stored matrices in the shape of the embedding."""
    stored = load_file(model / "model.safetensors")
    return [value.numpy() for value in stored.values() if value.shape == (ROWS, WIDTH)]


def embedding(model: Path) -> Any:
    (found,) = embeddings(model)
    return found


def source_of(made: Exported, tmp_path: Path) -> Path:
    """The model with the other files that a release has."""
    source = shutil.copytree(made.model, tmp_path / "model")
    (source / "tokenizer.json").write_text("{}")
    (source / "LICENSE").write_text("free")
    (source / "assets").mkdir()
    (source / "assets" / "card.md").write_text("card")
    (source / "export.json").write_text("of another export")
    return source


def test_export(exported: Callable[..., Exported], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced: one copy on disk and in a session, parity passed, axes by name, the files along, none else."""
    from transformers.exporters import ExportedModel

    monkeypatch.setattr(recorded, "FOLDER", tmp_path.with_name("no records"))
    made = exported("llama")
    source = source_of(made, tmp_path)
    out = tmp_path / "out"
    result = ok("export --json", source, "-o", out, "--provider", "cpu")
    found = json.loads(result.stdout)
    validate(found, "plan")
    assert result.stderr.splitlines()[-1].startswith(f"wrote {out}: ")
    assert (found["executed"], found["verified"], found["parity"]["verdict"]) == (True, True, "passed")
    assert found["session"][0]["copies"] == {"lm_head.weight": 1}
    assert len(copies(out / "model.onnx", embedding(source))) == 1

    written = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    assert written == {
        "model.onnx", "model.onnx.data", "export.json", "parity.json", "parity.html", "config.json",
        "generation_config.json", "tokenizer.json", "LICENSE", "assets/card.md",
    }  # fmt: skip
    for name in ("config.json", "tokenizer.json", "assets/card.md"):
        assert (out / name).read_bytes() == (source / name).read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "out"]

    document = json.loads((out / "export.json").read_text())
    section = document["tieconv"]
    assert section["weights"]["found"] == section["weights"]["tensors"]
    assert section["parity"]["verdict"] == "passed"
    assert json.loads((out / "parity.json").read_text())["graph"] == "model.onnx"
    assert str(tmp_path) not in (out / "export.json").read_text()
    graph = onnx.load(out / "model.onnx", load_external_data=False)
    assert b"stack_trace" not in graph.SerializeToString()
    axes = {value["name"]: value["shape"] for value in section["inputs"]}
    assert axes["input_ids"] == ["batch", "sequence"]
    assert axes["attention_mask"] == ["batch", "past_sequence + sequence"]
    assert axes[f"input.{CACHE}.layers.0.keys"][::2] == ["batch", "past_sequence"]

    config = json.loads((source / "config.json").read_text())
    reference = load(str(source), config, "float32")
    given = sample_inputs.sample(reference, bindings.Kind.CACHED, load_config(str(source)))
    with torch.no_grad():
        wanted = reference.model(**copy.deepcopy(given)).logits
    found = ExportedModel.from_pretrained(out)(**given).logits
    assert (found - wanted).abs().max() < 1e-4 * wanted.abs().max()


def test_a_failed_parity_writes_nothing(replay: Replay, tmp_path: Path) -> None:
    """Exit 1, the reason on stdout, nothing left behind, and the command that writes it all the same."""
    made = replay("llama", fault=faults.rope)
    before = snapshot(made.model)
    result = run("export --provider cpu", made.model, "-o", tmp_path / "out")
    assert result.exit_code == 1, result.output
    assert "  parity failed: " in result.stdout
    assert "nothing was written: parity failed" in result.stderr
    assert "--no-parity" in result.stderr
    assert list(tmp_path.iterdir()) == []
    assert snapshot(made.model) == before


def test_weights_are_proved_without_parity(replay: Replay, tmp_path: Path) -> None:
    """--no-parity leaves out the logits: a graph with another matrix than the checkpoint's is refused all the same."""
    made = replay("llama", fault=faults.head_rounded)
    assert "differs from the model" in refused(
        "export --no-parity", made.model, "-o", tmp_path / "out", after_plan=True
    )
    assert list(tmp_path.iterdir()) == []


def test_no_parity_says_so(replay: Replay, tmp_path: Path) -> None:
    """A graph that was not measured is written without a report, and its document says not_run."""
    made = replay("bert")
    out = tmp_path / "out"
    result = ok("export --no-parity", made.model, "-o", out)
    assert result.stderr.endswith("parity not measured\n")
    assert not (out / "parity.json").exists()
    section = json.loads((out / "export.json").read_text())["tieconv"]
    assert section["parity"] == {"verdict": "not_run", "reason": "--no-parity"}
    assert section["weights"]["embedding_stored"] == 1
    assert len(copies(out / "model.onnx", embedding(made.model))) == 1


def test_an_untied_model_keeps_both(replay: Replay, tmp_path: Path) -> None:
    """Head and embedding that differ are two matrices, and nothing is said of sharing."""
    made = replay("llama-untied")
    result = ok("export --no-parity", made.model, "-o", tmp_path / "out")
    assert "nothing tied" in result.stderr
    assert "once" not in result.output
    for matrix in embeddings(made.model):
        assert len(copies(tmp_path / "out" / "model.onnx", matrix)) == 1


def test_not_run_is_never_passed(replay: Replay, tmp_path: Path) -> None:
    """A provider that is missing: exit 2, nothing written, whatever the graph is."""
    import onnxruntime

    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this onnxruntime has a CUDA provider")
    made = replay("bert")
    result = run("export --provider cuda --json", made.model, "-o", tmp_path / "out")
    assert result.exit_code == 2
    found = json.loads(result.stdout)
    assert (found["executed"], found["parity"]["verdict"], found["output"]) == (False, "not_run", None)
    assert result.stderr.startswith("error: nothing was written: parity was not run: ")
    assert "--no-parity" in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("stage", ["load", "trace", "share", "write", "rename"])
def test_all_or_nothing(replay: Replay, tmp_path: Path, stage: str) -> None:
    """A stop at any stage leaves OUT as it was and nothing beside it."""
    made = replay("bert")
    out = tmp_path / "out"
    out.mkdir()
    (out / "model.gguf").write_text("old")

    stages = []

    def stop(name: str, done: int, whole: int) -> None:
        assert done < whole or (name, done, whole) == ("clean up", 0, 0)
        stages.append(name)
        if name == stage:
            raise KeyboardInterrupt

    planned = tieconv.plan_export(made.model, parity=False)
    with pytest.raises(KeyboardInterrupt):
        planned.execute(out, overwrite=True, progress=stop)
    assert snapshot(tmp_path) == {"out/model.gguf": b"old"}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert planned.outcome(out, overwrite=True).plan.notes[-1].endswith("that the new model lacks: model.gguf")
    assert stages[-2:] == [stage, "clean up"]


def test_a_budget_of_parity(replay: Replay, tmp_path: Path) -> None:
    """The batches that fit are fed, the others are named, and the export says how far the measurement is."""
    made, stages = replay("bert"), {}
    planned = tieconv.plan_export(made.model, budget="0s")
    report = planned.execute(tmp_path / "out", progress=lambda *stage: stages.update({stage[0]: stage[1:]})).parity
    assert report is not None and report.fed is not None and report.fed.left_out and report.fed.budget == 0
    assert [name for name in stages if "running" in name] == [
        f"running the {s}" for s in ("graph", "reference", "floor")
    ]
    assert all(0 <= done < whole for done, whole in stages.values())
    assert "no effect" in refused("export", made.model, "-o", tmp_path / "b", "--no-parity", "--budget", "1s")


def test_a_disk_that_fills(replay: Replay, tmp_path: Path) -> None:
    """A disk that is full in the middle: one sentence with what is free, nothing half-written."""
    made = replay("bert")

    def full(name: str, done: int, whole: int) -> None:
        if name == "share":
            raise OSError(errno.ENOSPC, "No space left on device")

    planned = tieconv.plan_export(made.model, parity=False)
    sentence = r"^out cannot be written: no space left on device: [\d.]+ \w+ \([\d,]+ bytes\) free\nhint: "
    with pytest.raises(WriteFailedError, match=sentence):
        planned.execute(tmp_path / "out", progress=full)
    assert list(tmp_path.iterdir()) == []


def test_out_is_the_model(models: Path) -> None:
    """The hint names no option that the command lacks."""
    told = run("export", models / "llama-tied", "-o", models / "llama-tied", "--overwrite").stderr
    assert "OUT is the model itself" in told and "hint: " in told
    assert "in-place" not in told


def test_out_is_looked_at_first(models: Path, tmp_path: Path) -> None:
    """An OUT that exists is refused before anything is loaded, by a dry run too; --overwrite takes a model only."""
    model = models / "llama-tied"
    assert "exists" in refused("export", model, "-o", tmp_path)
    assert "exists" in refused("export --dry-run", model, "-o", tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    assert "does not contain a model" in refused("export --overwrite", model, "-o", tmp_path)
    assert snapshot(tmp_path) == {"notes.txt": b"mine"}


def test_plan(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without -o: what would be exported and how large, nothing written and nothing loaded."""
    monkeypatch.setattr("tieconv.onnx.export.carry_out.load", None)
    monkeypatch.chdir(models / "llama-tied")
    before = snapshot(models / "llama-tied")
    result = ok("export --precision fp16")
    assert "tied matrix stored once" in result.stdout
    assert f"{CACHE} [batch, heads, past, width]" in result.stdout
    assert "model.embed_tokens.weight = lm_head.weight" in result.stdout
    assert result.stderr == "nothing was written: give -o OUT\n"
    found = json.loads(ok("export --precision fp16 --json").stdout)
    validate(found, "plan")
    assert (found["executed"], found["output"], found["precision"]) == (False, None, "fp16")
    single = json.loads(ok("export --json").stdout)
    assert single["bytes_written"] == 2 * found["bytes_written"]
    assert snapshot(models / "llama-tied") == before


@pytest.mark.parametrize(("model", "rule"), [("llama-diverged", "TIE001"), ("llama-headless-config", "TIE003")])
def test_an_inconsistent_model_is_refused(models: Path, tmp_path: Path, model: str, rule: str) -> None:
    """The finding and its remedy, before anything is loaded: what such a model computes depends on its loader."""
    result = run("export", models / model, "-o", tmp_path / "out")
    assert result.exit_code == 2 and rule in result.stderr
    assert "hint: repair it first: tieconv " in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_adapter_beside_the_weights_is_refused(exported: Callable[..., Exported], tmp_path: Path) -> None:
    """With PEFT, transformers loads the sum of both. Before, the graph held the sum, and parity passed it."""
    made = exported("llama")
    source = shutil.copytree(made.model, tmp_path / "model")
    (source / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    says = f"{source} holds a whole model and adapter_config.json"
    assert says in refused("export", source)
    assert says in refused("parity", made.graph, source)
    assert says in refused("export", source, "-o", tmp_path / "out") and not (tmp_path / "out").exists()
    with pytest.raises(RefusedError, match="adapter_config"):
        loaded(source)
    configure(source, has_lora_adapter=True)  # the class loads it, whether PEFT is installed or not
    ok("export", source)


def test_models_that_are_not_served(models: Path, tmp_path: Path) -> None:
    """A lone weight file: one sentence."""
    lone = models / "llama-tied" / "model.safetensors"
    assert "as a torch model" in refused("export", lone, "-o", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_values_beyond_fp16_are_refused(exported: Callable[..., Exported], tmp_path: Path) -> None:
    """A weight that fp16 makes infinite is named; fp32 is offered."""
    source = shutil.copytree(exported("llama").model, tmp_path / "model")
    with editing(source) as stored:
        stored["model.layers.1.mlp.up_proj.weight"][0, 0] = 1e5
    told = refused("export --precision fp16", source, "-o", tmp_path / "out", after_plan=True)
    assert "model.layers.1.mlp.up_proj.weight" in told
    assert "float16" in told


@pytest.mark.slow
def test_a_model_that_overflows_in_fp16_is_not_exported(exported: Callable[..., Exported], tmp_path: Path) -> None:
    """No weight is infinite, but torch's logits are. Parity cannot judge them, so nothing is written."""
    source = shutil.copytree(exported("llama").model, tmp_path / "model")
    with editing(source) as stored:
        for name, weight in stored.items():
            if "mlp" in name:
                weight *= 0.01 if "down" in name else 4000
    result = run("export --precision fp16 --provider cpu", source, "-o", tmp_path / "out")
    assert result.exit_code == 2 and not (tmp_path / "out").exists()
    assert "parity was not run: torch's float16 logits are not finite at 1," in result.stderr
    assert f"tieconv export {source} -o OUT --precision fp32 or bf16" in result.stderr
    ok("export --precision fp16 --no-parity", source, "-o", tmp_path / "out")
    for fault in (lambda model: None, negated):
        graph = onnx.load(tmp_path / "out" / "model.onnx")
        fault(graph)
        onnx.save(graph, tmp_path / "out" / "planted.onnx")
        report = tieconv.parity(tmp_path / "out" / "planted.onnx", source, provider="cpu")
        assert report.verdict == "not_run" and report.fed is not None and report.fed.not_judged > 1000
        assert "not judged  1," in render_parity(report) and "not judged" in render_page(report)
        validate(json.loads(str(report)), "parity")


def negated(model: onnx.ModelProto) -> None:
    """Give the logits another sign."""
    last = next(node for node in model.graph.node if "logits" in node.output)
    last.output[0] = "own logits"
    model.graph.node.append(onnx.helper.make_node("Neg", ["own logits"], ["logits"]))


def loaded(directory: Path) -> Reference:
    return load(str(directory), json.loads((directory / "config.json").read_text()), "float32")


@pytest.mark.parametrize("name", ["llama-duplicated", "llama-tied", "llama-tied-sharded", "gemma"])
def test_a_tied_pair_becomes_one_parameter(models: Path, name: str) -> None:
    """Whatever the loader made of a pair with equal bytes, head and embedding are then the same object."""
    reference = loaded(models / name)
    model = reference.model
    model.lm_head.weight = torch.nn.Parameter(model.get_input_embeddings().weight.detach().clone())
    joined = carry_out.join_ties(model, tieconv.inspect(models / name))
    assert joined == (("model.embed_tokens.weight", "lm_head.weight"),)
    assert model.lm_head.weight is model.get_input_embeddings().weight


def test_other_names_of_the_base_model(models: Path) -> None:
    """A checkpoint without the base model's prefix names the same parameters."""
    model = loaded(models / "gpt2-unprefixed").model
    model.lm_head.weight = torch.nn.Parameter(model.transformer.wte.weight.detach().clone())
    carry_out.join_ties(model, tieconv.inspect(models / "gpt2-unprefixed"))
    assert model.lm_head.weight is model.transformer.wte.weight


@pytest.mark.parametrize("name", ["llama-untied", "llama-diverged"])
def test_other_pairs_stay_two(models: Path, name: str) -> None:
    """Tensors that differ are not joined."""
    evidence = tieconv.inspect(models / name)
    assert carry_out.tied_names(evidence) == ()
    model = loaded(models / "llama-untied").model
    assert carry_out.join_ties(model, evidence) == ()
    assert model.lm_head.weight is not model.model.embed_tokens.weight


def test_a_loader_that_changed_a_copy_is_seen(models: Path) -> None:
    """Equal in the checkpoint and different in memory, if by the sign of one zero: not joined."""
    model = loaded(models / "llama-duplicated").model
    other = model.model.embed_tokens.weight.detach().clone()
    model.model.embed_tokens.weight.data[0, 0] = 0.0
    other[0, 0] = -0.0
    model.lm_head.weight = torch.nn.Parameter(other)
    carry_out.join_ties(model, tieconv.inspect(models / "llama-duplicated"))
    assert model.lm_head.weight is not model.model.embed_tokens.weight


@pytest.mark.parametrize("name", ["llama-tied", "bert-mlm", "t5", "bart"])
def test_no_side_of_a_sample_is_frozen_or_joined(models: Path, name: str) -> None:
    """Sides of 1 and sides that are equal by chance are what a tracer makes constant: there are none."""
    reference = loaded(models / name)
    kind = sample_inputs.kind_of(reference.model)
    given = sample_inputs.sample(reference, kind, load_config(str(models / name)))
    assert "attention_mask" in given
    assert given.get("use_cache") is {"llama-tied": True, "bert-mlm": None}.get(name, False)
    for value in given.values():
        if isinstance(value, torch.Tensor):
            assert value.shape[0] == 2
            assert value.shape[1] not in (1, 2)
    if name == "llama-tied":
        (layer, *_) = given[CACHE].layers
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
    adapter.name_axes(ir.Model(graph, ir_version=10))
    shapes = ["[batch,sequence]", "[batch,past_sequence + sequence]", "[batch,2,past_sequence,8]"]
    assert [str(found.shape) for found in inputs] == shapes
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


@pytest.mark.parametrize("kind", ["FLOAT", "BFLOAT16", "INT64"])
def test_a_transposed_weight_is_copied_in_order_when_it_is_written(kind: str, tmp_path: Path) -> None:
    """onnx-ir 1.1.0 writes such an array element by element, which takes long and cannot be interrupted."""
    dtype = ir.DataType[kind]
    weight = np.arange(24).reshape(2, 3, 4).astype(dtype.numpy())
    views = {"row": weight[0], "matrix": weight[0].T, "experts": weight.swapaxes(1, 2), "flipped": weight[:, ::-1]}
    values = [ir.Value(name=name, const_value=ir.Tensor(view, dtype, name=name)) for name, view in views.items()]
    made = _Program(ir.Model(ir.Graph([], [], nodes=[], initializers=values), ir_version=10))
    export_adapter.save(made, tmp_path)
    written = {value.name: value.const_value.numpy().flags.c_contiguous for value in values if value.const_value}
    assert written == {"row": True, "matrix": True, "experts": True, "flipped": False}
    stored = ir.load(tmp_path / "model.onnx").graph.initializers
    for name, view in views.items():
        tensor = stored[name].const_value
        assert tensor and tensor.dtype == dtype and np.array_equal(tensor.numpy(), view)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3fn"])
def test_a_large_weight_is_written_in_slices(dtype: str, tmp_path: Path) -> None:
    """Ctrl-C waits for one of them. The bytes are those of the weight."""
    from torch.onnx._internal.exporter._core import TorchTensor

    weight = torch.nn.Parameter(
        torch.arange(40 << 20, dtype=torch.uint8).view(getattr(torch, dtype)), requires_grad=False
    )
    value = ir.Value(name="weight", const_value=TorchTensor(weight, name="weight"))
    export_adapter.save(_Program(ir.Model(ir.Graph([], [], nodes=[], initializers=[value]), ir_version=10)), tmp_path)
    slices: list[bytes] = []
    assert value.const_value is not None
    value.const_value.tofile(types.SimpleNamespace(write=lambda data: slices.append(bytes(data))))
    assert max(map(len, slices)) <= 1 << 24
    assert b"".join(slices) == (tmp_path / "model.onnx.data").read_bytes() == weight.view(torch.uint8).numpy().tobytes()


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
