"""A loader in another interpreter: it gets jobs one by one, and is started again if it dies."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SCRIPTS = {
    "mlx-lm": "run_mlx_lm.py",
    "llama.cpp": "run_llama_cpp.py",
    "vllm": "run_vllm.py",
    "sglang": "run_sglang.py",
    "onnxruntime-genai": "run_genai.py",
    "transformers": "run_transformers.py",
    "accelerate": "run_accelerate.py",
    "ctranslate2": "run_ctranslate2.py",
}
"""The script of each loader. It needs only that loader's environment and numpy."""


class Runner:
    """The process of a loader's script."""

    def __init__(self, loader: str, python: str, env: Mapping[str, str] | None = None, *words: str) -> None:
        self._command = [python, str(HERE / SCRIPTS[loader]), *words]
        self._environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", **(env or {})}
        self._process: subprocess.Popen[str] | None = None

    def observe(self, job: dict[str, Any]) -> dict[str, Any]:
        """Return what the loader did with a checkpoint. A process that dies is an error of that job."""
        if self._process is None:
            self._process = subprocess.Popen(
                self._command, env=self._environment, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            )  # fmt: skip
        assert self._process.stdin and self._process.stdout
        try:
            self._process.stdin.write(json.dumps(job) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if line:
            seen: dict[str, Any] = json.loads(line)
            return seen
        return {"id": job["id"], "outcome": "error", "dropped": False, "why": f"the process ended with {self.close()}"}

    def close(self) -> int | None:
        """End the process; return its exit status."""
        process, self._process = self._process, None
        if process is None:
            return None
        with suppress(BrokenPipeError):  # it may have ended before it read its last job
            process.communicate()
        return process.wait()
