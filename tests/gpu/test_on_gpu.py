"""What must hold on a GPU. ``TIECONV_GPU_JSON`` names a document that was measured here; without it, it is measured."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.gpu import measure
from tests.gpu.machine import describe
from tests.gpu.record import PARTS
from tests.gpu.refusals import CASES
from tests.lazy import ort_session
from tests.onnx.test_export_table import EXPERTS

pytestmark = pytest.mark.gpu
STALE = "a stale CUDA graph"
SPECS = measure.measured(measure.plan(PARTS, small=False))


def of(part: str) -> list[str]:
    """The keys of a part."""
    return [key for spec in SPECS if spec[0] == part for key in measure.keys(spec)]


@pytest.fixture(scope="session")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    named = os.environ.get("TIECONV_GPU_JSON")
    path = Path(named) if named else tmp_path_factory.mktemp("gpu") / "gpu.json"
    if not named:
        measure.main(["-o", str(path)])
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


@pytest.fixture
def row(document: dict[str, Any]) -> Any:
    def find(part: str, key: str) -> dict[str, Any]:
        found = [row for row in document["parts"][part] if row["key"] == key]
        assert found, f"{part}: {key} was not measured"
        assert "error" not in found[0], found[0]["error"]
        return found[0]

    return find


def test_it_was_measured_here(document: dict[str, Any]) -> None:
    """On CUDA, with the whole models, on this machine with these packages."""
    assert (document["provider"], document["rehearsal"]) == ("cuda", False)
    assert document["machine"] == describe("cuda")
    assert document["machine"]["gpu"]["name"]


@pytest.mark.parametrize("key", of("verdicts"))
def test_healthy_graphs_pass(row, key: str) -> None:
    """Every model and precision passed on CUDA, no product, norm or attention on the CPU; fp32 with TF32 apart."""
    name, precision = key.split("/")
    found = row("verdicts", key)
    assert (found["active"], found["fallback_nodes"]) == (ort_session.CUDA, 0), found["reason"]
    assert not ort_session.HEAVY & set(found["placement"].get(ort_session.CPU, {}))
    assert ort_session.HEAVY & set(found["placement"][ort_session.CUDA])
    assert (found["tf32"] is not None) == (precision == "fp32")
    if name not in EXPERTS or precision == "fp32":
        assert found["verdict"] == "passed", found["failed"]


@pytest.mark.parametrize("key", of("faults"))
def test_faults_are_caught(row, key: str) -> None:
    """Every planted fault fails on CUDA; a frozen axis before a session is made."""
    found = row("faults", key)
    assert found["verdict"] == "failed", found["gates"]
    assert found["active"] == ort_session.CUDA or found["failed"] == ["structure"]


def test_a_stale_cuda_graph_gets_no_verdict(document: dict[str, Any]) -> None:
    """onnxruntime 1.31.1 crashes if a captured graph gets other buffers; another release may refuse, or compute."""
    (found,) = (row for row in document["parts"]["device_faults"] if row["key"] == STALE)
    crashed = found.get("error", "").startswith("the process ended with status -")
    assert crashed or found["verdict"] in ("failed", "not_run")


@pytest.mark.parametrize("key", [key for key in of("device_faults") if key != STALE])
def test_faults_of_the_device_are_caught(row, key: str) -> None:
    """Whatever computes wrong, parity fails or gives no verdict; TF32 fails by its figures."""
    found = row("device_faults", key)
    assert found["verdict"] in ("failed", "not_run"), found["gates"]
    if found["fault"] == "TF32 silently on":
        assert "rms_ratio" in found["failed"]
    if found["fault"] == "a product moved to the CPU":
        assert found["fallback_nodes"] == 1


@pytest.mark.parametrize("key", of("exports"))
def test_export_measures_what_is_served(row, key: str) -> None:
    """The command writes a graph in each precision after parity passed on the device."""
    found = row("exports", key)
    assert (found["exit"], found["verdict"], found["active"]) == (0, "passed", ort_session.CUDA)
    assert "model.onnx" in found["written"]


@pytest.mark.parametrize("key", of("on_device"))
def test_a_reference_on_the_device_judges_alike(row, key: str) -> None:
    """Healthy graphs pass and planted faults fail, with the reference computed on the GPU."""
    found = row("on_device", key)
    assert found["verdict"] == ("failed" if found["fault"] else "passed"), found["gates"]
    assert found["reference_device"] == "cuda:0"


def test_seven_billion_weights(row) -> None:
    """The large graph passes with a reference on the device, and its session holds the matrix once."""
    assert row("seven_billion", "verdict")["verdict"] == "passed"
    assert row("seven_billion", "session")["beyond_stored"] < 0.5


@pytest.mark.parametrize("key", of("serving"))
def test_a_captured_graph_is_current(row, key: str) -> None:
    """A replayed graph gives the logits of the tokens that it got; or onnxruntime says why there is none."""
    found = row("serving", key)
    assert found.get("equal", True)
    assert found.get("median", 0) > 0 or found["reason"]


def test_a_device_that_does_not_exist(row) -> None:
    """The sentence names the devices that do."""
    found = row("refusals", CASES[3])
    assert (found["exit"], found["verdict"]) == (2, "not_run")
    assert "there is no device 1: the only visible GPU is 0" in found["reason"]


def test_a_full_device_is_no_run(row) -> None:
    """Too little memory is said as such, with a command."""
    found = row("refusals", CASES[4])
    assert (found["verdict"], found["code"]) == ("not_run", "session.memory")
    assert "memory ran out" in found["reason"]
    assert "nvidia-smi" in found["hint"]


def test_no_device_is_no_run(row) -> None:
    """Without a visible GPU, cuda is not run and says why; auto runs on the CPU and says so."""
    found = row("refusals", CASES[0])
    assert (found["exit"], found["verdict"]) == (2, "not_run")
    assert "CUDA_VISIBLE_DEVICES" in found["reason"]
    assert found["hint"] == "unset CUDA_VISIBLE_DEVICES"
    found = row("refusals", CASES[1])
    assert (found["exit"], found["active"]) == (0, ort_session.CPU)
    assert any("runs on the CPU" in note for note in found["notes"])


def test_a_silent_fallback_is_detected(row) -> None:
    """A product that onnxruntime leaves on the CPU is named, and nothing is measured."""
    found = row("refusals", CASES[2])
    assert (found["verdict"], found["code"]) == ("not_run", "session.fallback-nodes")
    assert "MatMulInteger product" in found["reason"]


@pytest.mark.parametrize("key", [key for key in of("memory") if key.endswith("/exact")])
def test_the_second_copy(row, key: str) -> None:
    """The device holds the matrix twice in transformers' own export and behind a Transpose, and once else."""
    found = row("memory", key)
    assert (found["memory"], found["active"]) == ("device", ort_session.CUDA)
    if found["form"] in ("transformers", "transpose"):
        assert found["beyond_stored"] > 0.9
    else:
        assert found["beyond_stored"] < 0.5


@pytest.mark.parametrize("key", of("latency"))
def test_latency_was_measured(row, key: str) -> None:
    """Medians of many passes on the device."""
    found = row("latency", key)
    assert found["active"] in (ort_session.CUDA, "cuda")
    assert found["rounds"] >= 30
    assert 0 < found["low"] <= found["median"] <= found["high"]
