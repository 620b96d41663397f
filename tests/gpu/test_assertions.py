"""What `test_on_gpu` asserts, held against rows made for it: it accepts what must be, and each deviation fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.gpu import test_on_gpu as on_gpu
from tests.gpu.refusals import CASES

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
VERDICT = {
    "verdict": "passed", "active": CUDA, "fallback_nodes": 0, "reason": None, "failed": [],
    "tf32": {"logits": {}},
    "placement": {CUDA: {"Gemm": 1}, CPU: {"Shape": 2}},
}  # fmt: skip
FAULT = {"verdict": "failed", "active": CUDA, "failed": ["rms_ratio"], "gates": {}}
MEMORY = {"memory": "device", "active": CUDA, "form": "gemm", "beyond_stored": 0.02}
LATENCY = {"active": CUDA, "rounds": 50, "low": 1.0, "median": 1.1, "high": 1.2}
HIDDEN = {
    "exit": 2,
    "verdict": "not_run",
    "reason": "CUDA_VISIBLE_DEVICES is empty",
    "hint": "unset CUDA_VISIBLE_DEVICES",
}
AUTO = {"exit": 0, "active": CPU, "notes": ["the session runs on the CPU: no GPU"]}
HEAVY = {"verdict": "not_run", "code": "session.fallback-nodes", "reason": "run on the CPU: MatMulInteger product"}


def healthy(row: Any) -> None:
    on_gpu.test_healthy_graphs_pass(row, "llama/fp32")


def caught(row: Any) -> None:
    on_gpu.test_faults_are_caught(row, "llama/fp32/rope")


def copies(row: Any) -> None:
    on_gpu.test_the_second_copy(row, "fp32/gemm/exact")


def timed(row: Any) -> None:
    on_gpu.test_latency_was_measured(row, "fp32/gemm/1")


TF32 = {"fault": "TF32 silently on", "verdict": "failed", "failed": ["rms_ratio"], "gates": {}}
MOVED = {"fault": "a product moved to the CPU", "verdict": "not_run", "failed": [], "gates": {}, "fallback_nodes": 1}
EXPORT = {"exit": 0, "verdict": "passed", "active": CUDA, "written": ["model.onnx"]}
CAPTURED = {"median": 1.0, "equal": True}
ABSENT = {"exit": 2, "verdict": "not_run", "reason": "there is no device 1: the only visible GPU is 0"}
FULL = {"verdict": "not_run", "code": "session.memory", "reason": "memory ran out", "hint": "see nvidia-smi"}


def on_device(row: Any) -> None:
    on_gpu.test_faults_of_the_device_are_caught(row, "any")


def exported(row: Any) -> None:
    on_gpu.test_export_measures_what_is_served(row, "bf16")


def captured(row: Any) -> None:
    on_gpu.test_a_captured_graph_is_current(row, "bf16/gemm captured/1")


def giving(*rows: dict[str, Any]) -> Any:
    """A fixture that finds these rows, the first for every key but those of the refusals."""
    return lambda part, key: rows[CASES.index(key)] if part == "refusals" else rows[0]


@pytest.mark.parametrize(
    ("check", "rows"),
    [
        (healthy, [VERDICT]),
        (caught, [FAULT]),
        (caught, [FAULT | {"active": None, "failed": ["structure"]}]),
        (copies, [MEMORY]),
        (copies, [MEMORY | {"form": "transformers", "beyond_stored": 1.01}]),
        (timed, [LATENCY]),
        (on_device, [TF32]),
        (on_device, [MOVED]),
        (exported, [EXPORT]),
        (captured, [CAPTURED]),
        (captured, [{"verdict": "not_run", "reason": "shape nodes on the CPU"}]),
        (on_gpu.test_a_device_that_does_not_exist, [HIDDEN, AUTO, HEAVY, ABSENT]),
        (on_gpu.test_a_full_device_is_no_run, [HIDDEN, AUTO, HEAVY, ABSENT, FULL]),
        (on_gpu.test_no_device_is_no_run, [HIDDEN, AUTO]),
        (on_gpu.test_a_silent_fallback_is_detected, [HIDDEN, AUTO, HEAVY]),
    ],
)
def test_what_must_be_is_accepted(check: Callable[[Any], None], rows: list[dict[str, Any]]) -> None:
    """A row of a GPU that does what is promised."""
    check(giving(*rows))


@pytest.mark.parametrize(
    ("check", "rows"),
    [
        (healthy, [VERDICT | {"verdict": "failed"}]),
        (healthy, [VERDICT | {"active": CPU}]),
        (healthy, [VERDICT | {"fallback_nodes": 1}]),
        (healthy, [VERDICT | {"tf32": None}]),
        (healthy, [VERDICT | {"placement": {CUDA: {"Gemm": 1}, CPU: {"MatMul": 1}}}]),
        (healthy, [VERDICT | {"placement": {CUDA: {"Add": 1}}}]),
        (caught, [FAULT | {"verdict": "passed"}]),
        (caught, [FAULT | {"verdict": "not_run"}]),
        (caught, [FAULT | {"active": CPU}]),
        (copies, [MEMORY | {"beyond_stored": 1.0}]),
        (copies, [MEMORY | {"memory": "host"}]),
        (copies, [MEMORY | {"form": "transpose"}]),
        (timed, [LATENCY | {"active": CPU}]),
        (on_device, [TF32 | {"verdict": "passed"}]),
        (on_device, [TF32 | {"failed": ["weights"]}]),
        (on_device, [MOVED | {"fallback_nodes": 0}]),
        (exported, [EXPORT | {"active": CPU}]),
        (exported, [EXPORT | {"written": []}]),
        (captured, [CAPTURED | {"equal": False}]),
        (captured, [CAPTURED | {"median": 0, "reason": ""}]),
        (on_gpu.test_a_device_that_does_not_exist, [HIDDEN, AUTO, HEAVY, ABSENT | {"reason": "unknown"}]),
        (on_gpu.test_a_full_device_is_no_run, [HIDDEN, AUTO, HEAVY, ABSENT, FULL | {"code": "session.fallback"}]),
        (timed, [LATENCY | {"rounds": 3}]),
        (on_gpu.test_no_device_is_no_run, [HIDDEN | {"verdict": "passed"}, AUTO]),
        (on_gpu.test_no_device_is_no_run, [HIDDEN, AUTO | {"notes": []}]),
        (on_gpu.test_a_silent_fallback_is_detected, [HIDDEN, AUTO, {"verdict": "ran", "code": None, "reason": None}]),
    ],
)
def test_a_deviation_fails(check: Callable[[Any], None], rows: list[dict[str, Any]]) -> None:
    """Every promise that is broken is seen."""
    with pytest.raises(AssertionError):
        check(giving(*rows))
