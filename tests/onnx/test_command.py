"""`tieconv parity` and its exit codes; a graph that `inspect` refuses is refused by every command."""

from __future__ import annotations

import json
import mmap
import os
import re
import shutil
import tempfile
from collections.abc import Callable
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper, numpy_helper

import tieconv as api
from tests.cli.run import run
from tests.cli.stored import configure
from tests.hostile.conftest import faults_of_text
from tests.lazy import ort_session, write_plan as graph_planned
from tests.loops import case, fresh
from tests.onnx import faults
from tests.onnx.nodes import model, op, save, token_ids, value
from tests.schemas import validate
from tieconv.cli import main
from tieconv.errors import StalePlanError
from tieconv.install import install_command


def document(text: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(text)
    validate(loaded, "parity")
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
    genuine = ort_session.Session.run

    def stops_at_three(self: ort_session.Session, feeds: Any, outputs: Any, host: str) -> Any:
        if feeds["input_ids"].shape()[0] == 3:
            raise RuntimeError("INVALID_ARGUMENT: batch must be 1")
        return genuine(self, feeds, outputs, host)

    monkeypatch.setattr(ort_session.Session, "run", stops_at_three)
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


ROOT = Path(__file__).parents[2]
V, H = 400, 64


def tied() -> onnx.ModelProto:
    matrix = np.random.default_rng(0).standard_normal((V, H)).astype("f4")
    nodes = [op("Gather", "E input_ids", "x"), op("Transpose", "E", "T", perm=[1, 0]), op("MatMul", "x T", "logits")]
    return model(nodes, [token_ids()], [value("logits", ["b", "s", V])], {"E": matrix}, opset=18)


def short(model: onnx.ModelProto) -> None:
    model.graph.initializer[0].raw_data = model.graph.initializer[0].raw_data[:-400]


def few_numbers(model: onnx.ModelProto) -> None:
    tensor = TensorProto(name="E", data_type=TensorProto.FLOAT, dims=[V, H])
    tensor.float_data.extend([1.0] * 10)
    model.graph.initializer[0].CopyFrom(tensor)


def negative(model: onnx.ModelProto) -> None:
    model.graph.initializer[0].dims[0] = -V


def twice(model: onnx.ModelProto) -> None:
    model.graph.initializer.append(model.graph.initializer[0])


def unknown_place(model: onnx.ModelProto) -> None:
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../outside.data")


REFUSED = [short, few_numbers, negative, twice, unknown_place]
VERBS = [
    ("inspect", "{graph}"),
    ("check", "{graph}"),
    ("dedup", "{graph}", "-o", "{out}"),
    ("dedup", "{graph}", "--in-place"),
    ("untie", "{graph}", "-o", "{out}"),
    ("untie", "{graph}", "--in-place"),
    ("untie", "{graph}"),
    ("parity", "{graph}", str(ROOT / "fixtures" / "models" / "llama-tied")),
]


def saved(folder: Path, change: Callable[[onnx.ModelProto], None]) -> Path:
    made = tied()
    change(made)
    return save(made, folder / "in" / "model.onnx")


def run_line(words: tuple[str, ...], graph: Path, out: Path) -> tuple[int, str]:
    result = CliRunner().invoke(main, [word.format(graph=graph, out=out) for word in words])
    assert faults_of_text(result.output) == []
    return result.exit_code, result.output


@pytest.mark.parametrize("words", VERBS, ids=" ".join)
@pytest.mark.parametrize("change", REFUSED)
def test_every_verb_refuses_what_inspect_refuses(
    change: Callable[[onnx.ModelProto], None], words: tuple[str, ...], tmp_path: Path
) -> None:
    """Exit 2, the sentence of `inspect`, nothing written."""
    graph = saved(tmp_path, change)
    before = graph.read_bytes()
    code, said = run_line(words, graph, tmp_path / "out.onnx")
    sentence = run_line(("inspect", "{graph}"), graph, tmp_path)[1].splitlines()[0]
    assert code == 2 and "unexpected" not in said
    assert sentence.removeprefix("error: ") in said
    assert os.listdir(tmp_path) == ["in"] and graph.read_bytes() == before


def wrong_attribute(model: onnx.ModelProto) -> None:
    model.graph.node[0].attribute.append(helper.make_attribute("axis", "zero"))


def oldest(model: onnx.ModelProto) -> None:
    model.ir_version = 1
    del model.opset_import[:]


@pytest.mark.parametrize("words", [words for words in VERBS if words[0] in ("dedup", "untie")], ids=" ".join)
def test_what_the_checker_refuses_is_no_fault_of_tieconv(words: tuple[str, ...], tmp_path: Path) -> None:
    """A pass that stumbles over a graph that onnx's checker refuses too blames the graph, with the checker's words."""
    graph = saved(tmp_path, wrong_attribute)
    code, said = run_line(words, graph, tmp_path / "out.onnx")
    assert code == 2 and "model.onnx: node 0 (Gather) has the attribute axis of another type" in said


@pytest.mark.parametrize("words", VERBS, ids=" ".join)
def test_an_old_graph_without_opset(words: tuple[str, ...], tmp_path: Path) -> None:
    """IR version 1 imports no operators by version: an answer, or a refusal in a sentence."""
    graph = saved(tmp_path, oldest)
    code, said = run_line(words, graph, tmp_path / "out.onnx")
    assert code in (0, 1, 2) and "unexpected" not in said and "bug in tieconv" not in said


BROKEN = {
    "forward": {"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4, "factor": 2.0, "short_factor": [1.0],
                                    "long_factor": [1.0, 2.0, 3.0]}},
    "load": {"num_attention_heads": 0},
}  # fmt: skip


@pytest.mark.parametrize("words", [("export", "{model}", "-o", "{out}"), ("analyze", "{model}", "--text", "{text}")])
@pytest.mark.parametrize("broken", BROKEN)
def test_a_config_that_its_own_class_fails_with(broken: str, words: tuple[str, ...], tmp_path: Path) -> None:
    """One sentence that names the config, the class and the error; nothing is written."""
    model = tmp_path / "model"
    shutil.copytree(ROOT / "fixtures" / "models" / "llama-untied", model)
    configure(model, **BROKEN[broken])
    (tmp_path / "text").write_text("a b c " * 50)
    given = {"model": model, "out": tmp_path / "out", "text": tmp_path / "text"}
    result = CliRunner().invoke(main, [word.format(**given) for word in words])
    assert "unexpected" not in result.output and "bug in tieconv" not in result.output
    assert not (tmp_path / "out").exists()
    if words[0] == "export":
        assert result.exit_code == 2
        error = next(line for line in result.stderr.splitlines() if line.startswith("error: "))
        assert str(model) in error and ("LlamaForCausalLM" in error or "transformers cannot read" in error)


@pytest.mark.parametrize("verb", ["inspect", "check", "retie", "untie", "dedup", "convert"])
def test_odd_flags_of_an_unknown_class(verb: str, tmp_path: Path) -> None:
    """A flag may be any JSON value: an answer, or a refusal in a sentence."""
    for flag in [{}, [{}], [], [[]], "x", 0, None]:
        with case(flag):
            folder = fresh(tmp_path)
            model = folder / "model"
            shutil.copytree(ROOT / "fixtures" / "models" / "llama-duplicated", model)
            configure(model, architectures=["FooForCausalLM"], model_type="foo", tie_word_embeddings=flag)
            words = [verb, str(model), *(["--to", "torch"] if verb == "convert" else [])]
            result = CliRunner().invoke(main, words)
            assert result.exit_code in (0, 1, 2) and "unexpected" not in result.output


def test_a_copy_that_changes_after_it_was_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Data written through a mapping while the result is proved: the copies differ by then, and nothing is written."""
    if not os.access("/dev/shm", os.W_OK):
        pytest.skip("no /dev/shm: elsewhere the kernel may write a page back, and then notes the time")
    folder = Path(tempfile.mkdtemp(dir="/dev/shm", prefix="tieconv-test-"))
    try:
        model = tied()
        matrix = numpy_helper.to_array(model.graph.initializer[0])
        del model.graph.node[1]
        model.graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(matrix.T), "T"))
        (folder / "in").mkdir()
        graph = folder / "in" / "model.onnx"
        onnx.save(model, graph, save_as_external_data=True, location="data", size_threshold=0)
        with (graph.parent / "data").open("r+b") as stream:
            mapped = mmap.mmap(stream.fileno(), 0)
        mapped[-1] ^= 0  # dirty
        planned, proved = api.plan_graph_dedup(graph.parent), graph_planned.check_written

        def change(*given: object) -> None:
            proved(*given)
            mapped[-1] ^= 0x15

        monkeypatch.setattr(graph_planned, "check_written", change)
        with pytest.raises(StalePlanError, match="another program changed"):
            planned.execute(folder / "out")
        assert os.listdir(folder) == ["in"]
        monkeypatch.undo()
        mapped[-1] ^= 0x15
        assert api.plan_graph_dedup(graph.parent).execute(folder / "out").verified
    finally:
        shutil.rmtree(folder)
