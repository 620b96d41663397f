"""What the command says where CUDA is asked for and cannot be: each must stop, or say that the CPU ran."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, helper

from tests.gpu.models import Workshop
from tests.lazy import ort_session
from tieconv.errors import NotRunError

CASES = ("no device, cuda", "no device, auto", "a heavy node without a CUDA kernel", "device 1 of one", "memory full")
QUIET = {"TQDM_DISABLE": "1"}
FULL = CASES[4]
FREE = 8 << 20
"""Bytes that are left of the device: less than the provider's own handles take."""
HIDDEN = {"CUDA_VISIBLE_DEVICES": ""}


def refusal_row(workshop: Workshop, provider: str, case: str) -> dict[str, Any]:
    if case == CASES[2]:
        return _heavy(workshop.directory / "integer.onnx", provider)
    if case == FULL:
        return _full(workshop.graph("llama", "fp32"), provider)
    asked = ["cuda", "--device", "1"] if case == CASES[3] else [case.rpartition(" ")[2]]
    hidden = {} if case == CASES[3] else HIDDEN
    command = [sys.executable, "-m", "tieconv", "parity", str(workshop.graph("llama", "fp32")),
               str(workshop.model("llama")), "--provider", *asked, "--json"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | hidden, check=False)
    if not done.stdout:
        raise RuntimeError(f"no report, exit {done.returncode}: {done.stderr.strip()[-300:]}")
    told = json.loads(done.stdout)
    return {
        "case": case,
        "exit": done.returncode,
        "verdict": told["verdict"],
        "active": told["provider"]["active"] or None,
        "reason": told["reason"],
        "hint": told["hint"],
        "notes": told["provider"]["notes"],
        "stderr": done.stderr.strip()[-300:],
    }


EXPORTS = {
    "fp32": ["--precision", "fp32"],
    "fp16": ["--precision", "fp16"],
    "bf16": ["--precision", "bf16"],
    "fp16, fused": ["--precision", "fp16", "--fuse", "cuda"],
    "bf16, fused": ["--precision", "bf16", "--fuse", "cuda"],
    "int8": ["--quantise", "int8"],
    "int4": ["--quantise", "int4"],
}
"""What is exported, with its options."""


def export_row(workshop: Workshop, provider: str, label: str) -> dict[str, Any]:
    """`export` with the parity of the provider, in the precision that will be served, by the command."""
    with tempfile.TemporaryDirectory(dir=workshop.directory) as folder:
        command = [sys.executable, "-m", "tieconv", "export", str(workshop.model("llama")), "-o", f"{folder}/out",
                   *EXPORTS[label], "--provider", provider, "--json"]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ | QUIET, check=False)
        told = json.loads(done.stdout)
        parity = told.get("parity") or {}
        return {
            "precision": label,
            "exit": done.returncode,
            "written": sorted(path.name for path in Path(folder, "out").glob("*")),
            "verdict": parity.get("verdict"),
            "reason": parity.get("reason"),
            "active": (parity.get("provider") or {}).get("active"),
            "stderr": done.stderr.strip().replace(folder, "WORK")[-300:],
        }


def _full(graph: Path, provider: str) -> dict[str, Any]:
    """A session where another program holds nearly all of the device's memory."""
    import torch

    held = []
    if provider == "cuda":
        free = torch.cuda.mem_get_info()[0]
        held = [torch.empty(free - FREE, dtype=torch.uint8, device="cuda")]
    try:
        active = ort_session.open_session(graph, provider).use.active
        return {"case": FULL, "verdict": "ran", "active": active, "reason": None, "hint": None, "held": len(held)}
    except NotRunError as refused:
        return {"case": FULL, "verdict": "not_run", "active": refused.active or None, "reason": refused.message,
                "hint": refused.hint, "code": refused.code}  # fmt: skip


def _heavy(path: Path, provider: str) -> dict[str, Any]:
    """A product of unsigned bytes has no kernel on CUDA, so that the runtime puts it on the CPU and says nothing."""
    node = helper.make_node("MatMulInteger", ["a", "b"], ["y"], name="product")
    names = [helper.make_tensor_value_info(name, TensorProto.UINT8, ["n", 8]) for name in ("a", "b")]
    out = helper.make_tensor_value_info("y", TensorProto.INT32, ["n", 8])
    graph = helper.make_graph([node], "integer", names, [out])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)
    try:
        active = ort_session.open_session(path, provider).use.active
        return {"case": CASES[2], "verdict": "ran", "active": active, "reason": None, "hint": None}
    except NotRunError as refused:
        return {"case": CASES[2], "verdict": "not_run", "active": refused.active, "reason": refused.message,
                "hint": refused.hint, "code": refused.code}  # fmt: skip
