"""Holds the predictions of one loader against the program itself, in another interpreter, over the grid."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tieconv as api
from tests.oracles import checkpoints
from tests.oracles.checkpoints import Cell, cells
from tieconv.checkpoint.finding import Prediction

KEPT = Path(__file__).parents[2] / "docs" / "measured" / "oracles"
DANGEROUS = ("random", "discarded", "error")
_MEANS = {"same": ("tied", "untied"), "left-out": ("tied", "discarded")}
"""The predictions that an observation agrees with, where more than one does."""


@dataclass(frozen=True)
class Judged:
    """One checkpoint: what was predicted, and what the loader did."""

    cell: str
    predicted: Prediction
    seen: dict[str, Any]

    @property
    def answered(self) -> bool:
        """Whether something was predicted, and something can be seen."""
        return self.predicted.outcome != "unknown" and self.seen["outcome"] != "unmatched"

    @property
    def right(self) -> bool:
        """Whether the outcome agrees, and the lost bias where the model was loaded."""
        predicted, seen = str(self.predicted.outcome), self.seen["outcome"]
        loaded = predicted not in ("error", "random")
        agrees = predicted in _MEANS.get(seen, (seen,))
        return agrees and (not loaded or bool(self.predicted.dropped) == self.seen["dropped"])

    @property
    def dangerous(self) -> bool:
        """Whether the prediction promises values that the loaded model does not have."""
        promises = self.predicted.outcome in ("tied", "untied")
        return self.answered and promises and self.seen["outcome"] in DANGEROUS

    def __str__(self) -> str:
        told = f"{self.predicted.outcome}{' bias dropped' if self.predicted.dropped else ''}"
        saw = f"{self.seen['outcome']}{' bias dropped' if self.seen['dropped'] else ''}"
        return f"{self.cell}: predicted {told} ({self.predicted.detail}), saw {saw} ({self.seen['why']})"


def judge(
    spec: str, runner: Runner, families: Sequence[str], every: int = 1, offset: int = 0, keep: Path | None = None
) -> Iterator[Judged]:
    """Yield each checkpoint of the grid: predicted first, then loaded. One family is on disk at a time."""
    number = 0
    for kind in families:
        with tempfile.TemporaryDirectory(dir=keep) as name:
            folder = Path(name)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                made = checkpoints.base(kind, folder)
            for cell in cells(kind, checkpoints.levels(made.family)):
                number += 1
                if (number + offset) % every:
                    continue
                yield _judged(spec, runner, cell, made, folder / str(number), number)


def _judged(spec: str, runner: Runner, cell: Cell, made: checkpoints.Base, folder: Path, number: int) -> Judged:
    checkpoints.write(cell, made, folder)
    (predicted,) = api.inspect(folder, consumers=spec).consumers
    seen = runner.observe(checkpoints.job(cell, made, folder, number))
    shutil.rmtree(folder)
    return Judged(cell.name, predicted, seen)


def figures(judged: Sequence[Judged]) -> dict[str, Any]:
    """Return the figures of a run, every wrong cell, and the reasons of what is unknown."""
    answered = [one for one in judged if one.answered]
    wrong = [one for one in answered if not one.right]
    unknown = [one for one in judged if one.predicted.outcome == "unknown"]
    unmatched = [one for one in judged if one.seen["outcome"] == "unmatched"]
    return {
        "cells": len(judged),
        "families": len({one.cell.partition(",")[0] for one in judged}),
        "right": len(answered) - len(wrong),
        "wrong": [str(one) for one in wrong],
        "dangerous": sum(one.dangerous for one in wrong),
        "unknown": len(unknown),
        "unknown_reasons": dict(Counter(one.predicted.detail for one in unknown).most_common()),
        "unmatched": len(unmatched),
        "unmatched_families": dict(Counter(one.cell.partition(",")[0] for one in unmatched).most_common()),
        "outcomes": dict(sorted(Counter(one.seen["outcome"] for one in judged).items())),
    }


def write(name: str, spec: str, versions: dict[str, str], found: dict[str, Any]) -> Path:
    """Keep the figures of a run in the environment ``name``."""
    KEPT.mkdir(parents=True, exist_ok=True)
    path = KEPT / f"{name}.json"
    path.write_text(json.dumps({"consumer": spec, "versions": versions, **found}, indent=1) + "\n", encoding="utf-8")
    return path


def faults(name: str, judged: Sequence[Judged]) -> list[str]:
    """Return the wrong cells that the kept figures of the environment ``name`` do not list, and the dangerous ones."""
    kept = json.loads((KEPT / f"{name}.json").read_text(encoding="utf-8"))
    listed = {_cell(line) for line in kept["wrong"]}
    return [str(one) for one in judged if one.dangerous or (one.answered and not one.right and one.cell not in listed)]


def _cell(line: str) -> str:
    return line.partition(": predicted ")[0]


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
