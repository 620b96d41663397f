"""The measurement itself, rehearsed on the CPU: what it records, how it goes on, and that it cannot be mistaken."""

from __future__ import annotations

import gc
import json
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.gpu import machine, measure, memory
from tests.gpu.device_faults import DEVICE_FAULTS
from tests.gpu.job import FORMS_PART, key_of, rows
from tests.gpu.latency import LENGTHS, latency_rows, quantiles
from tests.gpu.memory import memory_row, open_with
from tests.gpu.models import FORMS, LARGE, Workshop, large_config, matrix_bytes, seven, seven_config
from tests.gpu.record import PARTS, SCHEMA, OtherMeasurementError, Record
from tests.gpu.refusals import CASES, EXPORTS, FULL, refusal_row
from tests.gpu.seven_billion import ON_DEVICE
from tests.gpu.verdicts import fault_row, planted, short, verdict_row
from tests.onnx.table import FAULTS

MACHINE = {"gpu": None, "python": "3.12"}


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return Workshop(tmp_path_factory.mktemp("work"), small=True)


@pytest.fixture
def record(tmp_path: Path) -> Record:
    return Record(tmp_path / "gpu.json", "cpu", MACHINE, small=True)


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def test_every_row_is_on_disk_at_once(record: Record) -> None:
    """A row is written as soon as it is known, replaces an older one, and an error is measured again."""
    record.add("verdicts", {"key": "llama/fp32", "error": "no"})
    assert not record.done("verdicts", "llama/fp32")
    record.add("verdicts", {"key": "llama/fp32", "verdict": "passed"})
    assert record.done("verdicts", "llama/fp32")
    found = read(record.path)
    assert found["schema"] == SCHEMA
    assert found["parts"]["verdicts"] == [{"key": "llama/fp32", "verdict": "passed", "source": machine.source()}]
    assert list(found["parts"]) == list(PARTS)


@pytest.mark.slow
def test_a_second_run_goes_on(record: Record) -> None:
    """The rows and the seconds of the run before are kept."""
    record.add("memory", {"key": "a", "loaded": 1})
    record.finish(3.0, ["memory/b"], {"memory": ["b", "a"]})
    again = Record(record.path, "cpu", MACHINE, small=True)
    assert again.done("memory", "a")
    again.add("memory", {"key": "b", "loaded": 2})
    again.finish(4.0, [], {"memory": ["b", "a"]})
    found = read(record.path)
    assert [row["key"] for row in found["parts"]["memory"]] == ["b", "a"]
    assert (found["seconds"], found["left"]) == (7.0, [])


@pytest.mark.parametrize(
    ("provider", "where", "small"),
    [("cuda", MACHINE, True), ("cpu", {"gpu": "another"}, True), ("cpu", MACHINE, False)],
)
def test_measurements_are_not_mixed(record: Record, provider: str, where: dict[str, Any], small: bool) -> None:
    """A file of another provider, machine or size is left alone."""
    record.write()
    before = record.path.read_bytes()
    with pytest.raises(OtherMeasurementError, match="another measurement"):
        Record(record.path, provider, where, small=small)
    assert record.path.read_bytes() == before


def test_only_a_whole_run_on_cuda_is_no_rehearsal(tmp_path: Path) -> None:
    """The CPU, or the small models, make a rehearsal: the document says so itself."""
    made = {
        (provider, small): Record(tmp_path / "x.json", provider, MACHINE, small=small).document["rehearsal"]
        for provider in ("cuda", "cpu")
        for small in (False, True)
    }
    assert made == {("cuda", False): False, ("cuda", True): True, ("cpu", False): True, ("cpu", True): True}


def test_what_is_planned() -> None:
    """Ten architectures and more with std 0.15 and one model of 1 GiB and more, in three precisions; every fault;
    each form of the head; four lengths."""
    stages = measure.plan(PARTS, small=False)
    specs = measure.measured(stages)
    verdicts = [spec[1:] for spec in specs if spec[0] == "verdicts"]
    assert len({name for name, _ in verdicts} - {LARGE}) >= 10
    assert {precision for name, precision in verdicts if name == LARGE} == {"fp32", "fp16", "bf16"}
    assert matrix_bytes("fp32", small=False) >= 1 << 30
    assert large_config(small=False).vocab_size == 131_072
    faults = {spec[3] for spec in specs if spec[0] == "faults"}
    assert faults == {*FAULTS, "a row of a token that is never fed", "the batch axis frozen"}
    assert {precision for places in planted().values() for _, precision in places} == {"fp32", "fp16", "bf16"}
    assert {spec[2] for spec in specs if spec[0] == "memory"} == set(FORMS)
    alone, at_once = stages[-1]
    assert (at_once, {len(group) for group in alone}) == (1, {1}), "a process for each, and one at a time"
    assert {group[0][0] for group in alone} == {"memory", "latency", "serving", "refusals", "seven_billion"}
    assert {spec[1] for spec in specs if spec[0] == "device_faults"} == set(DEVICE_FAULTS)
    assert {spec[1] for spec in specs if spec[0] == "exports"} == set(EXPORTS)
    assert EXPORTS.keys() > {"fp32", "fp16", "bf16", "int8", "int4"}
    assert {spec[1:] for spec in specs if spec[0] == "on_device"} == set(ON_DEVICE)
    assert [spec[1] for spec in specs if spec[0] == "seven_billion"] == ["verdict", "session"]
    weights = seven(small=True).num_parameters()
    assert weights == sum_of_weights(seven_config(small=True))
    assert sum_of_weights(seven_config(small=False)) > 7e9
    assert LENGTHS == (1, 8, 64, 256)
    assert len(measure.keys(("latency", "fp32"))) == len(LENGTHS) * (len(FORMS) + 1)
    keys = [(spec[0], key) for spec in specs for key in measure.keys(spec)]
    assert len(set(keys)) == len(keys)


def sum_of_weights(config: Any) -> int:
    """The weights of a Llama with a tied head."""
    width, inner, heads = config.hidden_size, config.intermediate_size, config.num_attention_heads
    narrow = width * config.num_key_value_heads // heads
    layer = 2 * width * width + 2 * width * narrow + 3 * width * inner + 2 * width
    return int(config.vocab_size * width + config.num_hidden_layers * layer + width)


def test_some_rows() -> None:
    """An expression chooses rows by part and key, and keeps the graphs that they need."""
    stages = measure.chosen(measure.plan(PARTS, small=False), "^(verdicts/t5|latency/fp16)")
    assert set(measure.measured(stages)) == {
        *(("verdicts", "t5", precision) for precision in measure.PRECISIONS), ("latency", "fp16"),
    }  # fmt: skip
    assert [group for groups, _ in stages for group in groups if group[0][0] == FORMS_PART]


def test_without_a_gpu_nothing_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 2 with the reason, and no file that could be taken for a result."""
    monkeypatch.setattr(machine, "without_gpu", lambda: "torch finds no GPU")
    assert measure.main(["-o", str(tmp_path / "gpu.json")]) == 2
    assert "nothing was measured: torch finds no GPU" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_what_a_gpu_says_of_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Name, memory and driver of the device, from torch and nvidia-smi; without the latter there is no driver."""
    made = SimpleNamespace(name="NVIDIA TEST", major=9, minor=0, multi_processor_count=132, total_memory=150 << 30)
    fake = SimpleNamespace(cuda=SimpleNamespace(get_device_properties=lambda index: made))
    answer = subprocess.CompletedProcess([], 0, stdout="NVIDIA TEST, 580.159.03, 143771\n")
    monkeypatch.setattr(machine.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(machine.subprocess, "run", lambda *given, **more: answer)
    found = machine._gpu(fake)
    assert (found["name"], found["driver"], found["capability"]) == ("NVIDIA TEST", "580.159.03", "9.0")
    monkeypatch.setattr(machine.shutil, "which", lambda name: None)
    assert machine._gpu(fake)["driver"] is None
    assert machine.describe("cpu")["gpu"] is None


@pytest.mark.filterwarnings("ignore:Specified provider")
def test_a_session_on_the_cpu_is_not_measured_as_a_device(workshop: Workshop) -> None:
    """Memory and latency ask for CUDA; what onnxruntime gives instead raises, and is never a figure of a GPU."""
    if not machine.without_gpu():
        pytest.skip("there is a GPU")
    with pytest.raises(RuntimeError, match=r"session on the CPU|CUDA failure"):
        open_with(workshop.graph("llama", "fp32"), "cuda", "exact", "float32")


@pytest.mark.slow
def test_a_verdict_keeps_every_gate(workshop: Workshop) -> None:
    """Each gate with its limit, the worst cases, what both sides are off by, and the operators of each provider."""
    row = verdict_row(workshop, "cpu", "llama", "fp32")
    assert (row["verdict"], row["active"], row["reference"]) == ("passed", "CPUExecutionProvider", "float64")
    assert set(row["gates"]) >= {
        "rms_ratio",
        "max_ratio",
        "case_ratio",
        "steps_rms_ratio",
        "steps_max_ratio",
        "weights",
    }
    assert 0.2 < row["gates"]["rms_ratio"]["value"] < row["gates"]["rms_ratio"]["limit"]
    assert row["worst_cases"][0]["ratio"] == row["gates"]["case_ratio"]["value"]
    assert row["errors"]["graph"]["relative_rms"] > 0
    assert row["placement"]["CPUExecutionProvider"]["Gemm"] == 1
    json.dumps(row, allow_nan=False)


def test_what_has_no_kernel_is_not_run(workshop: Workshop) -> None:
    """bf16 on the CPU is a row that says so, and no verdict."""
    row = verdict_row(workshop, "cpu", "llama", "bf16")
    assert (row["verdict"], row["gates"]) == ("not_run", {})
    assert "bf16" in row["reason"]
    assert "placement" not in row


@pytest.mark.slow
def test_faults_are_planted_into_our_own_export(workshop: Workshop) -> None:
    """The shared head of a Gemm takes the fault too, and the row says by which gates it was caught."""
    row = fault_row(workshop, "cpu", "llama", "fp32", "two head rows swapped")
    assert (row["verdict"], row["fault"]) == ("failed", "two head rows swapped")
    assert {"graph_weights", "max_ratio"} <= set(row["failed"])
    frozen = fault_row(workshop, "cpu", "llama", "bf16", "the batch axis frozen")
    assert (frozen["verdict"], frozen["failed"], frozen["active"]) == ("failed", ["structure"], None)


def test_a_model_that_fails_is_a_row(workshop: Workshop) -> None:
    """The error and what it is about, and the run goes on."""
    spec = ("verdicts", "no-such-model", "fp32")
    ((key, row),) = rows(spec, workshop, "cpu")
    assert key == key_of(spec)
    assert "KeyError" in row["error"]
    assert row["about"] == ["no-such-model", "fp32"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.slow
def test_memory_of_a_form(workshop: Workshop, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is free before the session, with it and behind a run, beside what is stored, which is the matrix once in
    every form. The readings are given: what a process that has done other things before holds, may fall.
    """
    readings = iter([100 << 20, 70 << 20, 65 << 20])
    monkeypatch.setattr(memory, "_free", lambda provider: next(readings))
    row = memory_row(workshop, "cpu", "fp32", form, "exact")
    assert (row["memory"], row["active"]) == ("host", "CPUExecutionProvider")
    assert row["matrix"] < row["stored"] < 2 * row["matrix"]
    assert (row["loaded"], row["ran"]) == (30 << 20, 35 << 20)
    assert row["beyond_stored"] == round(((30 << 20) - row["stored"]) / row["matrix"], 3)


@pytest.mark.slow
def test_a_reading_of_the_host_falls_with_what_is_held() -> None:
    """Half a gigabyte, far more than what a collection or the kernel may give back meanwhile."""
    gc.collect()
    before = memory._free("cpu")
    held = np.ones(1 << 29, np.uint8)
    assert before - memory._free("cpu") > len(held) // 2


@pytest.mark.slow
def test_latency_is_interleaved(workshop: Workshop) -> None:
    """One row for each form and torch at each length, every one of the same passes."""
    found = list(latency_rows(workshop, "cpu", "fp32"))
    assert [f"fp32/{row['form']}/{row['sequence']}" for row in found] == measure.keys(("latency", "fp32"))
    assert all(0 < row["low"] <= row["median"] <= row["high"] for row in found)
    assert quantiles([0.001 * n for n in range(1, 12)]) == {"median": 6.0, "low": 2.0, "high": 10.0}


def test_a_bound_pass_gives_the_models_logits(workshop: Workshop) -> None:
    """What is timed is the model: the bound session and torch agree."""
    import torch

    from tests.gpu import latency

    batch = latency._batch(workshop, 8)
    graph = workshop.form("fp32", "gemm")
    session = latency.open_with(graph, "cpu", "default", "float32")
    binding = []
    latency.bound(session, graph, batch, keep=binding)()
    ours = dict(zip([out.name for out in session.inner.get_outputs()], binding[0].get_outputs(), strict=True))["logits"]
    with torch.inference_mode():
        theirs = latency._pass(latency._torch(workshop, "cpu", "fp32"), batch, "cpu")()
    assert torch.allclose(torch.from_numpy(ours.numpy()), theirs, atol=1e-4)


def test_a_process_that_dies_blames_one_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash is the error of the row that was being measured; those behind it are left for the next run."""
    killed = tmp_path / "python"
    killed.write_text("#!/bin/sh\necho 'CUDA error 700' >&2\nkill -9 $$\n")
    killed.chmod(0o755)
    monkeypatch.setattr(measure.sys, "executable", str(killed))
    output = tmp_path / "out.json"
    assert measure.main(["-o", str(output), "--provider", "cpu", "--small", "--parts", "refusals"]) == 1
    found = read(output)
    rows = found["parts"]["refusals"]
    assert [row["key"] for row in rows] == [CASES[0], FULL]  # the last one has a process of its own
    assert all("CUDA error 700" in row["error"] for row in rows)
    assert found["left"] == [f"refusals/{case}" for case in CASES[1:4]]


@pytest.mark.parametrize(("given", "folder"), [(["--small"], "small"), ([], "whole")])
def test_a_rehearsals_models_are_not_measured_later(tmp_path: Path, monkeypatch, given: list[str], folder: str) -> None:
    """One ``--work`` for a rehearsal and the run proper: the small large model is not taken for the large one."""
    told = tmp_path / "python"
    told.write_text('#!/bin/sh\necho "$3" >&2\nexit 3\n')
    told.chmod(0o755)
    monkeypatch.setattr(measure.sys, "executable", str(told))
    output = tmp_path / "out.json"
    asked = ["-o", str(output), "--provider", "cpu", "--parts", "refusals", "--work", str(tmp_path / "work"), *given]
    assert measure.main(asked) == 1
    row = read(output)["parts"]["refusals"][0]
    assert json.loads(row["error"].partition("status 3: ")[2])["work"] == str(tmp_path / "work" / folder)


def test_a_run_stops_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At its limit the run ends with what it has, says what is left, and blames nobody."""
    slow = tmp_path / "python"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setattr(measure.sys, "executable", str(slow))
    output = tmp_path / "out.json"
    limited = ["--small", "--parts", "refusals", "--limit-seconds", str(measure._GRACE + 1)]
    assert measure.main(["-o", str(output), "--provider", "cpu", *limited]) == 1
    found = read(output)
    assert found["parts"]["refusals"] == []
    assert len(found["left"]) == len(CASES)
    assert found["seconds"] < 30


@pytest.mark.slow
def test_refusals(workshop: Workshop) -> None:
    """Without a GPU the command ends with 2 and the next command; auto says what ran."""
    row = refusal_row(workshop, "cpu", CASES[0])
    assert (row["exit"], row["verdict"]) == (2, "not_run")
    assert "pip" in row["hint"]
    assert refusal_row(workshop, "cpu", CASES[2])["verdict"] == "ran"


def test_figures_are_json() -> None:
    """Four digits; an infinite ratio is null."""
    assert [short(value) for value in (1.23456, float("inf"), float("nan"), None)] == [1.235, None, None, None]


@pytest.mark.slow
def test_the_rehearsal(tmp_path: Path) -> None:
    """Each part on the CPU, fp32 for all: every row is measured or says why it cannot be, and again takes no time."""
    rows = "fp32|^(device_faults|refusals|exports|on_device|seven_billion)/"
    command = ["-o", str(tmp_path / "try.json"), "--provider", "cpu", "--small", "--rows", rows]
    assert measure.main(command) == 0
    found = read(tmp_path / "try.json")
    assert found["rehearsal"] is True
    assert all(found["parts"][part] for part in PARTS)
    assert all(row["verdict"] in ("passed", "not_run") for row in found["parts"]["verdicts"])
    assert all(row["verdict"] in ("failed", "not_run") for row in found["parts"]["faults"])
    caught = {row["fault"]: row["verdict"] for row in found["parts"]["device_faults"]}
    assert caught["the session holds another embedding"] == "failed"  # the CPU has no TF32 and no CUDA graph
    before = found["parts"]
    assert measure.main(command) == 0
    assert read(tmp_path / "try.json")["parts"] == before
