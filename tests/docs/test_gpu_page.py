"""The page of the GPU measurement: tables from a document of a GPU, "not run" without, and nothing else becomes one."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"
PARTS = (
    "verdicts", "faults", "device_faults", "refusals", "exports", "on_device", "seven_billion", "memory", "latency",
    "serving",
)  # fmt: skip


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    yield importlib.import_module("pages.gpu")
    for name in [name for name in sys.modules if name.partition(".")[0] == "pages"]:
        del sys.modules[name]


def gates(rms: float) -> dict[str, Any]:
    return {
        name: {"value": rms, "limit": limit}
        for name, limit in (("rms_ratio", 2.0), ("max_ratio", 4.0), ("case_ratio", 5.0))
    }


def document(**more: Any) -> dict[str, Any]:
    """A measurement as a GPU would give it."""
    verdict = {"active": CUDA, "failed": [], "gates": gates(1.04), "reason": None,
               "tf32": {"logits": {"ratio": 812.0, "max_ratio": 700.0}},
               "placement": {CUDA: {"MatMul": 9, "Gemm": 1}, CPU: {"Shape": 3}}}  # fmt: skip
    memory = {"precision": "fp32", "matrix": 1 << 30, "stored": 3 << 29, "memory": "device", "active": CUDA}
    return {
        "schema": "tieconv.gpu/1", "tieconv": "0.1.0", "provider": "cuda", "rehearsal": False, "date": "2026-11-21",
        "seconds": 512.3, "left": ["latency/bf16"],
        "machine": {
            "gpu": {"name": "NVIDIA TEST", "capability": "9.0", "bytes": 150 << 30, "driver": "580.1",
                    "driver_cuda": "13.0"},
            "onnxruntime": {"version": "1.31.1", "cuda": "13.0"}, "python": "3.12.3",
            "torch": {"version": "2.11.0", "cuda": "13.0", "cudnn": 91900},
            "packages": {"transformers": "5.17.0", "onnx": "1.23.1"},
        },
        "parts": {
            "verdicts": [
                {"key": "llama/fp32", "model": "llama", "precision": "fp32", "verdict": "passed", **verdict},
                {"key": "bert/bf16", "model": "bert", "precision": "bf16", "verdict": "failed", **verdict,
                 "failed": ["case_ratio"], "tf32": None},
                {"key": "opt/fp32", "error": "RuntimeError: CUDA error 700", "about": ["opt", "fp32"]},
            ],
            "faults": [
                {"key": "llama/fp32/rope", "fault": "rope", "model": "llama", "precision": "fp32", "verdict": "failed",
                 "active": CUDA, "failed": ["rms_ratio"], "gates": gates(71_000.0)},
                {"key": "llama/bf16/rope", "fault": "rope", "model": "llama", "precision": "bf16", "verdict": "passed",
                 "active": CUDA, "failed": [], "gates": gates(1.2)},
                *({"key": f"{name}/bf16/mask", "verdict": "not_run", "reason": "no kernel for Gelu"}
                  for name in ("llama", "bert")),
            ],
            "device_faults": [
                {"key": fault, "fault": fault, "model": "llama", "precision": "fp32", "verdict": verdict,
                 "active": CUDA, "failed": failed, "gates": gates(ratio), "reason": reason}
                for fault, verdict, failed, ratio, reason in (
                    ("tf32", "failed", ["rms_ratio"], 2285.0, "no constant"),
                    ("moved", "not_run", [], 1.0, "1 heavy node"),
                    ("stale", "passed", [], 1.0, None),
                )
            ],
            "exports": [{"key": "bf16", "precision": "bf16", "exit": 0, "written": ["model.onnx"], "verdict": "passed",
                         "active": CUDA}],
            "on_device": [{"key": "llama/fp32/", "model": "llama", "precision": "fp32", "fault": None, "active": CUDA,
                           "verdict": "passed", "gates": gates(0.99), "parity_seconds": 8.2}],
            "seven_billion": [{"key": "verdict", "verdict": "passed", "active": CUDA, "gates": gates(1.1)}],
            "serving": [
                {"key": "bf16/torch compiled/1", "precision": "bf16", "form": "torch compiled", "sequence": 1,
                 "active": "cuda", "rounds": 50, "median": 1.5, "low": 1.4, "high": 1.75},
                {"key": "bf16/gemm captured/1", "precision": "bf16", "form": "gemm captured", "sequence": 1,
                 "active": CUDA, "rounds": 50, "median": 0.5, "low": 0.4, "high": 0.75, "equal": False},
                {"key": "bf16/gemm captured/8", "form": "gemm captured", "verdict": "not_run", "reason": "shape nodes"},
            ],
            "refusals": [{"key": "no device, auto", "case": "no device, auto", "verdict": "passed", "active": CPU,
                          "reason": None, "hint": None, "notes": ["the session runs on the CPU"]}],
            "memory": [
                {"key": f"fp32/{form}/{arena}", "form": form, "arena": arena, **memory, "loaded": loaded << 29,
                 "ran": loaded << 29, "beyond_stored": beyond}
                for form, loaded, beyond in (("gemm", 3, -0.001), ("transformers", 5, 1.0))
                for arena in ("exact", "default")
            ],
            "latency": [
                {"key": f"fp32/{form}/1", "precision": "fp32", "form": form, "sequence": 1, "active": where,
                 "rounds": 50, "median": 1.5, "low": 1.4, "high": 1.75}
                for form, where in (("gemm", CUDA), ("torch", "cuda"))
            ],
        },
    } | more  # fmt: skip


def page(gpu: Any, path: Path, made: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> str:
    path.write_text(json.dumps(made))
    monkeypatch.setattr(gpu, "MEASURED", path)
    return str(gpu.page())


def test_without_a_document_nothing_was_run(gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part is named as not run, and no table of figures is shown; the command is."""
    monkeypatch.setattr(gpu, "MEASURED", tmp_path / "gpu.json")
    text = gpu.page()
    measured = text.partition("## Measured")[2].partition("## Without a GPU")[0]
    assert "Nothing was measured on a GPU yet" in measured
    assert all(f"`{part}`" in measured for part in PARTS)
    assert "|" not in measured
    assert "python -m tests.gpu.measure -o docs/measured/gpu.json" in text


def test_a_document_becomes_tables(gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Date, device and versions; every row; what failed, was not caught, not measured or left is told in words."""
    text = page(gpu, tmp_path / "gpu.json", document(), monkeypatch)
    assert "2026-11-21, tieconv 0.1.0: NVIDIA TEST" in text
    assert "The driver 580.1 serves CUDA 13.0" in text
    assert "1 of 2 passed" in text
    assert "| llama | 1.04 (1.04) |  |\n| bert |  | **failed** 1.04 (1.04) |" in text
    assert "the RMS ratio is 8.1e+02 to 8.1e+02" in text
    assert "bert/bf16: beyond its limit: `case_ratio`" in text
    assert "`verdicts/opt/fp32`" in text.rpartition("Not measured: ")[2] and "CUDA error" not in text
    assert "| fp32 | 1.04 llama | 1.04 llama | 1.04 llama |" in text
    assert "| bf16 | 1.04 bert | 1.04 bert | 1.04 bert |" in text
    assert "On the CPU: Shape." in text
    assert "| rope | 1 of 2 | 7.1e+04 |  | 1.20 | `rms_ratio` |" in text
    assert "**Not caught**: llama/bf16/rope" in text
    assert "**Not run**: llama/bf16/mask, bert/bf16/mask: no kernel for Gelu" in text
    assert "1 of 2 were caught" in text
    assert "| no device, auto | passed | CPUExecutionProvider | the session runs on the CPU |" in text
    assert "| fp32 | gemm | 1024 | 1536 | 1536 | 1536 | 0.00 | 1536 | 1536 |" in text
    assert "| fp32 | transformers | 1024 | 1536 | 2560 | 2560 | 1.00 | 2560 | 2560 |" in text
    assert "| fp32 | 1 | 1.5 (1.4–1.75) | 1.5 (1.4–1.75) |" in text
    assert "`latency/bf16`" in text.rpartition("Not measured: ")[2]
    assert "| tf32 | llama fp32 | failed | 2.3e+03 | `rms_ratio` |" in text
    assert "| moved | llama fp32 | not_run | 1.00 | 1 heavy node |" in text
    assert "**Not caught**: stale. Figures as without the fault mean that it had no effect." in text
    assert "- bf16: exit 0, passed, ran on CUDAExecutionProvider, wrote `model.onnx`" in text
    assert "| bf16 | torch compiled | 1 | 1.5 (1.4–1.75) |  |" in text
    assert "| bf16 | gemm captured | 1 | 0.5 (0.4–0.75) | **different** |" in text
    assert "**Not run**: bf16/gemm captured/8: shape nodes" in text
    assert "generator object" not in text


def test_a_part_that_is_empty_was_not_run(gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no section; the last line names it."""
    made = document()
    made["parts"]["latency"] = []
    text = page(gpu, tmp_path / "gpu.json", made, monkeypatch)
    assert "### Latency" not in text and "### Compiled" in text
    assert "`latency`." in text.rpartition("Not measured: ")[2]


def test_the_newer_of_two_rows_counts(gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One table for each part: rows of the later document, then those that only the earlier one has."""
    made = document()
    made["machine"]["gpu"]["name"] = "NVIDIA OTHER"
    session = {"key": "session", "matrix": 1 << 30, "stored": 14 << 30, "loaded": 14 << 30, "ran": 15 << 30,
               "beyond_stored": 0.08, "active": CUDA,
               "milliseconds": {"1": {"gemm": 12.68, "torch": 20.5}, "64": {"gemm": 13.0, "torch": 22.0}}}  # fmt: skip
    verdict = {"key": "verdict", "verdict": "passed", "active": CUDA, "gates": gates(1.02),
               "reference_device": "cuda:0", "export_seconds": 400.0, "parity_seconds": 90.5}  # fmt: skip
    on_device = [
        {"key": key, "model": "llama", "precision": "fp32", "fault": fault, "verdict": verdict, "active": CUDA,
         "gates": gates(ratio), "reference_device": "cuda:0", "parity_seconds": 8.2}
        for key, fault, verdict, ratio in (("a", None, "passed", 0.99), ("b", "rope", "failed", 70.0))
    ]  # fmt: skip
    stale = {"key": "stale", "error": "the process ended with status -11: "}
    faults = [*made["parts"]["device_faults"], stale]
    made["parts"] = {"verdicts": [], "seven_billion": [session, verdict], "on_device": on_device,
                     "device_faults": faults}  # fmt: skip
    made["left"] = ["verdicts/t5"]
    (tmp_path / "gpu_h999.json").write_text(json.dumps(made))
    main = document()
    main["parts"]["on_device"] = []
    text = page(gpu, tmp_path / "gpu.json", main, monkeypatch)
    assert text.index("NVIDIA OTHER") < text.index("NVIDIA TEST")
    assert "### Verdicts\n\nOn NVIDIA TEST.\n" in text
    assert "### Reference on the device\n\nOn NVIDIA OTHER.\n" in text
    faults = text.partition("### Faults of the device")[2].partition("###")[0]
    assert faults.count("| tf32 |") == 1 and "| stale |" in faults, "the older row of a key that failed later"
    assert "| 1024 | 14336 | 14336 | 15360 | 0.08 | 12.7 | 20.5 | 13 | 22 |" in text
    assert "ms of gemm, 1 token |" in text and "ms of torch, 64 tokens |" in text
    assert "| passed | 1.02 | cuda:0 | 400.0 | 90.5 |" in text
    assert "| llama | fp32 |  | passed | 0.99 | cuda:0 | 8.2 |" in text
    assert "| llama | fp32 | rope | failed | 70.00 | cuda:0 | 8.2 |" in text
    assert "status -11" not in text and "`verdicts/t5`" in text.rpartition("Not measured: ")[2]
    (tmp_path / "gpu_h999.json").write_text(json.dumps(made | {"rehearsal": True}))
    with pytest.raises(ValueError, match="no measurement on a GPU"):
        gpu.page()


def test_what_the_h200_measured() -> None:
    """No fault of the device passed there, every healthy graph did, and replayed CUDA graphs gave equal logits."""
    parts = json.loads((ROOT / "docs" / "measured" / "gpu_h200.json").read_text())["parts"]
    assert {row["verdict"] for row in parts["verdicts"]} == {"passed"}
    assert {row.get("verdict") for row in parts["device_faults"]} == {"failed", "not_run", None}
    assert {row["verdict"] for row in parts["on_device"] if row["fault"]} == {"failed"}
    captured = [row for row in parts["serving"] if row["form"].endswith("captured")]
    assert len(captured) == 12
    assert all(row["equal"] for row in captured)


def test_the_readme_quotes_the_document() -> None:
    """Its two figures are those that were measured."""
    parts = json.loads((ROOT / "docs" / "measured" / "gpu.json").read_text())["parts"]
    loaded = {row["key"]: row["loaded"] / 2**20 for row in parts["memory"]}
    caught = sum(row["verdict"] == "failed" for row in parts["faults"])
    text = (ROOT / "README.md").read_text()
    assert f"parity caught {caught} of {len(parts['faults'])} planted faults" in text
    assert f"took {loaded['fp16/gemm/exact']:.0f} MiB of the device" in text
    assert f"{loaded['fp16/transformers/exact']:.0f} MiB as transformers exports it" in text


@pytest.mark.parametrize(
    "more",
    [
        {"provider": "cpu"},
        {"rehearsal": True},
        {"schema": "tieconv.gpu/2"},
        {"machine": {"gpu": None}},
        {"parts": {"verdicts": [{"key": "llama/fp32", "verdict": "passed", "active": CPU}]}},
        {"parts": {"memory": [{"key": "fp32/gemm/exact", "active": CUDA, "memory": "host"}]}},
    ],
)
def test_a_cpu_run_becomes_no_page(
    gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any]
) -> None:
    """A rehearsal, and any row that did not run on CUDA, stops the generator."""
    with pytest.raises(ValueError, match="no measurement on a GPU"):
        page(gpu, tmp_path / "gpu.json", document(**more), monkeypatch)


def standin(**more: Any) -> dict[str, Any]:
    """A measurement as the stand-in gives it."""
    made = document()
    memory = [row | {"memory": "stand-in"} for row in made["parts"]["memory"]]
    placement = {CUDA: {"Gemm": 1}, CPU: {"Shape": 3}}
    rows = [
        {"key": "llama/fp32", "model": "llama", "precision": "fp32", "placement": placement},
        {"key": "bert/bf16", "verdict": "not_run", "reason": "1 heavy node runs on the CPU: MatMul"},
        {"key": "opt/fp16", "error": "RuntimeError: no", "about": ["opt", "fp16"]},
    ]
    parts = {part: [] for part in PARTS} | {"memory": memory, "placement": rows}
    return made | {"provider": "standin", "rehearsal": True, "small": False, "parts": parts} | more


def test_what_the_standin_says(gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under a heading of its own, behind what was measured: what is placed and copied, and that nothing is proved of a
    device; what could not start is told."""
    (tmp_path / "standin.json").write_text(json.dumps(standin()))
    monkeypatch.setattr(gpu, "STANDIN", tmp_path / "standin.json")
    measured, _, not_run = page(gpu, tmp_path / "gpu.json", document(), monkeypatch).partition("## Without a GPU")
    assert "stand-in" not in measured.partition("## Measured")[2]
    assert "computes nothing" in not_run
    assert "1 of 3 graphs (1 models in three precisions) start on CUDA" in not_run
    assert "On the CPU, for shapes: Shape." in not_run
    assert "**Not run**: bert/bf16: 1 heavy node runs on the CPU" in not_run
    assert "**Not measured**, opt/fp16: `RuntimeError: no`" in not_run
    assert "| fp32 | transformers | 1024 | 1536 | 2560 | 2560 | 1.00 | 2560 | 2560 |" in not_run


@pytest.mark.parametrize(
    "more",
    [
        {"provider": "cpu"},
        {"small": True},
        {"schema": "tieconv.gpu/2"},
        {"parts": {"placement": [], "memory": [], "verdicts": [{"key": "llama/fp32", "verdict": "passed"}]}},
        {"parts": {"placement": [], "memory": [{"key": "fp32/gemm/exact", "memory": "device"}]}},
    ],
)
def test_only_the_standins_rows_stand_there(gpu: Any, tmp_path: Path, more: dict[str, Any]) -> None:
    """A rehearsal, a verdict, or memory of anything else stops the generator."""
    (tmp_path / "standin.json").write_text(json.dumps(standin(**more)))
    with pytest.raises(ValueError, match=r"no measurement of the stand-in|memory of another device"):
        gpu.read_standin(tmp_path / "standin.json")


def test_the_committed_figures_are_what_the_export_promises(gpu: Any) -> None:
    """The matrix is on the device twice in transformers' own export and behind a Transpose, and once else; no graph
    of ours leaves a heavy node on the CPU."""
    parts = gpu.read_standin(gpu.STANDIN)["parts"]
    assert len({row["model"] for row in parts["placement"]}) >= 19
    assert all("placement" in row for row in parts["placement"])
    exact = {
        (row["precision"], row["form"]): row["beyond_stored"] for row in parts["memory"] if row["arena"] == "exact"
    }
    assert len(exact) == 12
    for (_, form), beyond in exact.items():
        assert (beyond > 0.9) if form in ("transformers", "transpose") else (beyond < 0.1)


def test_parts_are_those_of_the_script(gpu: Any) -> None:
    """The page knows every part that is measured, and the document's schema."""
    from tests.gpu.record import PARTS as MEASURED, SCHEMA

    assert tuple(gpu.PARTS) == MEASURED == PARTS
    assert gpu.SCHEMA == SCHEMA
