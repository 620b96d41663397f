"""`tieconv parity`: 0 passed, 1 failed, 2 not run; one JSON document; one page that needs nothing else."""

from __future__ import annotations

import json
import re
import shutil
from html import unescape
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from typing import Any

import onnx
import pytest

from tests.cli.run import run
from tests.onnx import faults
from tests.schemas import validate
from tieconv.install import install_command
from tieconv.onnx.ort_session import Session

SCHEMA = json.loads((files("tieconv.reporters") / "schemas" / "parity.schema.json").read_text())


def document(text: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(text)
    validate(loaded, SCHEMA)
    return loaded


class Page(HTMLParser):
    """The tags of a page, and whether each is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)
        if tag not in ("meta", "br", "link"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)


def test_passed(exported, tmp_path: Path) -> None:
    """Exit 0 with the contract's keys, and a page without an address or a script. Its icon is empty."""
    made = exported("llama")
    page = tmp_path / "report.html"
    result = run("parity --provider cpu --json", made.graph, made.model, "--html", page)
    assert result.exit_code == 0, result.output
    found = document(result.stdout)
    assert found["verdict"] == "passed"
    assert found["provider"]["requested"] == "cpu"
    assert found["provider"]["active"] == "CPUExecutionProvider"
    assert found["provider"]["fallback_nodes"] == 0
    assert {"onnxruntime", "torch", "transformers"} <= found["provider"]["versions"].keys()
    assert found["metrics"]["reference"]["dtype"] == "float64"
    assert found["metrics"]["seeds"] == [0, 1, 2]
    assert all(side["n"] > 0 for side in (found["metrics"]["logits"]["graph"], found["metrics"]["steps"]["graph"]))
    text = page.read_text(encoding="utf-8")
    parsed = Page(text)
    assert not parsed.open
    assert parsed.tags.count("figure") == len(found["histograms"])
    assert not re.search(r'<script|<link (?!rel="icon" href="data:,">)|src=|https?:', text)


def test_failed(exported, tmp_path: Path) -> None:
    """Exit 1; the table names the gates that did not hold, the page marks them."""
    made = exported("llama")
    graph = faults.plant(made.graph, faults.rope, tmp_path / "model.onnx")
    page = tmp_path / "report.html"
    result = run("parity", graph, made.model, "--html", page)
    assert result.exit_code == 1, result.output
    assert "FAILED  rms_ratio" in result.stdout
    assert result.stdout.splitlines()[-1].startswith("failed: ")
    assert '<span class="failed">failed</span> rms ratio' in page.read_text(encoding="utf-8")
    assert not Page(page.read_text(encoding="utf-8")).open


def test_a_missing_provider_is_not_run(exported) -> None:
    """CUDA where the installed onnxruntime has none: exit 2 with the command to run, the verdict not_run."""
    import onnxruntime

    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this onnxruntime has a CUDA provider")
    made = exported("llama")
    result = run("parity --provider cuda --json", made.graph, made.model)
    assert result.exit_code == 2
    found = document(result.stdout)
    assert (found["verdict"], found["provider"]["requested"], found["provider"]["active"]) == ("not_run", "cuda", "")
    assert install_command("gpu") in found["hint"]
    assert [line.split(":")[0] for line in result.stderr.splitlines()] == ["error", "hint"]


def test_bf16_is_not_run_on_the_cpu(exported, tmp_path: Path) -> None:
    """A bf16 graph has no kernels on the CPU: exit 2, and the reason says so."""
    made = exported("llama")
    model = onnx.load(made.graph)
    for weight in model.graph.initializer:
        if weight.data_type == onnx.TensorProto.FLOAT and len(weight.dims) == 2:
            raw = onnx.numpy_helper.to_array(weight).view("uint16")[..., 1::2].tobytes()
            weight.data_type, weight.raw_data = onnx.TensorProto.BFLOAT16, raw
    onnx.save(model, tmp_path / "model.onnx")
    result = run("parity --json", tmp_path, made.model)
    assert result.exit_code == 2
    found = document(result.stdout)
    assert found["verdict"] == "not_run"
    assert "bf16" in found["reason"]


@pytest.mark.slow
def test_a_float32_reference_judges_no_float32_graph(exported) -> None:
    """A reference no finer than the graph gives no verdict; for fp16 it does."""
    made = exported("llama")
    result = run("parity --reference float32 --json", made.graph, made.model)
    assert (result.exit_code, document(result.stdout)["verdict"]) == (2, "not_run")
    half = exported("gpt2", "float16")
    result = run("parity --reference float32 --json", half.graph, half.model)
    assert (result.exit_code, document(result.stdout)["verdict"]) == (0, "passed")


@pytest.mark.slow
def test_little_memory(exported, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where float64 does not fit, a float32 graph is not run, with both sizes; an fp16 one is held against float32."""
    monkeypatch.setattr("tieconv.onnx.parity.measured_pair.available_memory", lambda: 300_000)
    made = exported("llama")
    result = run("parity --json", made.graph, made.model)
    found = document(result.stdout)
    assert (result.exit_code, found["verdict"]) == (2, "not_run")
    assert "but only 300 kB is free" in found["reason"]
    half = exported("gpt2", "float16")
    found = document(run("parity --json", half.graph, half.model).stdout)
    assert (found["verdict"], found["metrics"]["reference"]["dtype"]) == ("passed", "float32")


@pytest.mark.slow
def test_a_graph_that_stops_running_fails(exported, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the runtime says at a shape is a failed case, never a lost one."""
    made = exported("llama")
    genuine = Session.run

    def stops_at_three(self: Session, feeds: Any, outputs: Any, host: str) -> Any:
        if feeds["input_ids"].shape()[0] == 3:
            raise RuntimeError("INVALID_ARGUMENT: batch must be 1")
        return genuine(self, feeds, outputs, host)

    monkeypatch.setattr(Session, "run", stops_at_three)
    result = run("parity --json", made.graph, made.model)
    assert result.exit_code == 1
    found = document(result.stdout)
    broken = [case for case in found["cases"] if case["error"]]
    assert [case["batch"] for case in broken] == [3, 3, 3]
    assert [gate["name"] for gate in found["gates"] if not gate["passed"]] == ["runs"]
    assert all("batch must be 1" in case["error"] for case in broken)


@pytest.mark.parametrize("what", ["absent", "no graph", "no config", "lone file"])
def test_what_cannot_be_read_exits_2(exported, tmp_path: Path, what: str) -> None:
    """One error with a hint, nothing on stdout."""
    made = exported("llama")
    graph, model = made.graph, made.model
    if what == "absent":
        graph = tmp_path / "absent.onnx"
    elif what == "no graph":
        graph = tmp_path / "text.onnx"
        graph.write_bytes(b"this is text, not a graph" * 20)
    elif what == "no config":
        model = tmp_path / "bare"
        model.mkdir()
        shutil.copy(made.model / "model.safetensors", model)
    else:
        model = made.model / "model.safetensors"  # transformers would load the directory, which may hold another one
    result = run("parity", graph, model)
    assert (result.exit_code, result.stdout) == (2, "")
    assert [line.split(":")[0] for line in result.stderr.splitlines()] == ["error", "hint"]


@pytest.mark.slow
def test_what_is_likely_wrong_is_said(exported, tmp_path: Path) -> None:
    """An epsilon in a norm that the exporter took to pieces is named in text, page and JSON."""
    made = exported("llama")
    page = tmp_path / "report.html"
    graph = faults.plant(made.graph, faults.eps, tmp_path / "model.onnx")
    told = run("parity", graph, made.model, "--html", page)
    sentence = "a norm of the graph has epsilon 1e-05, but the model's class has 1e-06"
    assert told.exit_code == 1 and f"cause: {sentence}" in " ".join(told.stdout.split())
    assert sentence in unescape(page.read_text(encoding="utf-8"))
    assert document(run("parity --json", graph, made.model).stdout)["reason"] == sentence


@pytest.mark.slow
def test_nothing_is_likely_wrong_where_it_passed(exported, tmp_path: Path) -> None:
    """In fp16 an epsilon drowns in rounding: the graph passes, and no reason stands against the verdict."""
    made = exported("llama", "float16")
    graph = faults.plant(made.graph, faults.eps, tmp_path / "model.onnx")
    found = document(run("parity --json --provider cpu", graph, made.model).stdout)
    assert (found["verdict"], found["reason"]) == ("passed", None)
