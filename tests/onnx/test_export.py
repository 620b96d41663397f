"""`tieconv export`: one graph, the tied matrix once, measured before it gets its name; all of it or nothing."""

from __future__ import annotations

import copy
import errno
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from safetensors.torch import load_file, save_file

import tieconv
from tests.cli.run import ok, refused, run
from tests.cli.stored import PLAN, snapshot
from tests.onnx import faults, recorded
from tests.onnx.exported import ROWS, WIDTH, Exported
from tests.onnx.stored import copies
from tests.schemas import validate
from tieconv.errors import WriteFailedError
from tieconv.onnx.export import adapter as export_adapter
from tieconv.onnx.export.sample_inputs import sample
from tieconv.onnx.parity.bindings import Kind
from tieconv.reference import load, load_config

torch = pytest.importorskip("torch")
Replay = Callable[..., Exported]


@pytest.fixture
def replay(exported: Callable[..., Exported], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Replay:
    """The exporter's place is taken by a graph that it wrote before, with or without a fault."""

    def use(name: str, dtype: str = "float32", fault: faults.Fault | None = None) -> Exported:
        made = exported(name, dtype)

        def save(_: object, directory: Path) -> dict[str, Any]:
            for part in ("model.onnx", "model.onnx.data"):
                shutil.copy(made.graph.parent / part, directory)
            if fault is not None:
                (directory / "model.onnx.data").unlink()
                faults.plant(made.graph, fault, directory / "model.onnx")
            return {"components": {}}

        monkeypatch.setattr(export_adapter, "export_graph", lambda model, inputs, opset, fuse: None)
        monkeypatch.setattr(export_adapter, "save", save)
        return made

    return use


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
    validate(found, PLAN)
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
    assert axes["input.past_key_values.layers.0.keys"][::2] == ["batch", "past_sequence"]

    config = json.loads((source / "config.json").read_text())
    reference = load(str(source), config, "float32")
    given = sample(reference, Kind.CACHED, load_config(str(source)))
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
    (out / "config.json").write_text("old")

    def stop(name: str, done: int, whole: int) -> None:
        assert done < whole
        if name == stage:
            raise KeyboardInterrupt

    planned = tieconv.plan_export(made.model, parity=False)
    with pytest.raises(KeyboardInterrupt):
        planned.execute(out, overwrite=True, progress=stop)
    assert snapshot(tmp_path) == {"out/config.json": b"old"}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


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
    told = refused("export", models / "llama-tied", "-o", models / "llama-tied", "--overwrite")
    assert "OUT is the model itself" in told
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
    assert "past_key_values [batch, heads, past, width]" in result.stdout
    assert "model.embed_tokens.weight = lm_head.weight" in result.stdout
    assert result.stderr == "nothing was written: give -o OUT\n"
    found = json.loads(ok("export --precision fp16 --json").stdout)
    validate(found, PLAN)
    assert (found["executed"], found["output"], found["precision"]) == (False, None, "fp16")
    single = json.loads(ok("export --json").stdout)
    assert single["bytes_written"] == 2 * found["bytes_written"]
    assert snapshot(models / "llama-tied") == before


@pytest.mark.parametrize(
    ("model", "rule", "hint"),
    [("llama-diverged", "TIE001", "tieconv "), ("llama-headless-config", "TIE003", "tieconv ")],
)
def test_an_inconsistent_model_is_refused(models: Path, tmp_path: Path, model: str, rule: str, hint: str) -> None:
    """The finding and its remedy, before anything is loaded: what such a model computes depends on its loader."""
    result = run("export", models / model, "-o", tmp_path / "out")
    assert result.exit_code == 2
    assert rule in result.stderr
    assert f"hint: repair it first: {hint}" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_models_that_are_not_served(models: Path, tmp_path: Path) -> None:
    """A lone weight file: one sentence."""
    lone = models / "llama-tied" / "model.safetensors"
    assert "as a torch model" in refused("export", lone, "-o", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_values_beyond_fp16_are_refused(exported: Callable[..., Exported], tmp_path: Path) -> None:
    """A weight that fp16 makes infinite is named; fp32 is offered."""

    source = shutil.copytree(exported("llama").model, tmp_path / "model")
    stored = load_file(source / "model.safetensors")
    stored["model.layers.1.mlp.up_proj.weight"][0, 0] = 1e5
    save_file(stored, source / "model.safetensors", {"format": "pt"})
    told = refused("export --precision fp16", source, "-o", tmp_path / "out", after_plan=True)
    assert "model.layers.1.mlp.up_proj.weight" in told
    assert "float16" in told
