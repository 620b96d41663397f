"""What the command says where CUDA is asked for and cannot be: each must stop, or say that the CPU ran."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, helper

from tests.gpu.models import Workshop
from tieconv.errors import NotRunError
from tieconv.onnx.session.open_ import open_session

HIDDEN = {"CUDA_VISIBLE_DEVICES": ""}
CASES = ("no device, cuda", "no device, auto", "a heavy node without a CUDA kernel")


def refusal_row(workshop: Workshop, provider: str, case: str) -> dict[str, Any]:
    if case == CASES[2]:
        return _heavy(workshop.directory / "integer.onnx", provider)
    asked = case.rpartition(" ")[2]
    command = [sys.executable, "-m", "tieconv", "parity", str(workshop.graph("llama", "fp32")),
               str(workshop.model("llama")), "--provider", asked, "--json"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | HIDDEN, check=False)
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


def _heavy(path: Path, provider: str) -> dict[str, Any]:
    """A product of unsigned bytes has no kernel on CUDA, so that the runtime puts it on the CPU and says nothing."""
    node = helper.make_node("MatMulInteger", ["a", "b"], ["y"], name="product")
    names = [helper.make_tensor_value_info(name, TensorProto.UINT8, ["n", 8]) for name in ("a", "b")]
    out = helper.make_tensor_value_info("y", TensorProto.INT32, ["n", 8])
    graph = helper.make_graph([node], "integer", names, [out])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)
    try:
        active = open_session(path, provider).use.active
        return {"case": CASES[2], "verdict": "ran", "active": active, "reason": None, "hint": None}
    except NotRunError as refused:
        return {"case": CASES[2], "verdict": "not_run", "active": refused.active, "reason": refused.message,
                "hint": refused.hint, "code": refused.code}  # fmt: skip
