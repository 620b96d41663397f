"""Predictions for the grid held against what a loader does, here or in another interpreter."""

from __future__ import annotations

import json
import re
import subprocess
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tieconv as api
from tests.consumers import grid
from tests.oracles import run_transformers as loader
from tieconv.checkpoint.finding import Prediction

LOADER = Path(loader.__file__)


@dataclass(frozen=True)
class Match:
    """One checkpoint: what was predicted, and what happened."""

    cell: grid.Cell
    predicted: Prediction
    observed: dict[str, Any]

    @property
    def claims(self) -> bool:
        """Whether anything was predicted."""
        return self.predicted.outcome != "unknown"

    @property
    def agrees(self) -> bool:
        """Whether outcome and lost biases are those predicted; where the loader stops, no bias is looked at."""
        outcome = str(self.predicted.outcome)
        stopped = outcome in ("error", "unknown")
        lost = stopped or sorted(self.predicted.dropped) == sorted(self.observed["dropped"])
        return outcome == self.observed["outcome"] and lost

    def __str__(self) -> str:
        told = f"{self.predicted.outcome} {list(self.predicted.dropped)} ({self.predicted.detail})"
        return f"{self.cell.name}: predicted {told}, observed {self.observed}"


def match(cells: Iterable[grid.Cell], spec: str, folder: Path, python: str | None = None) -> list[Match]:
    """Each checkpoint of ``cells``, predicted for the one loader of ``spec`` and loaded with it."""
    foundry, listed = grid.Foundry(folder), list(cells)
    jobs = [grid.job(cell, foundry.write(cell, folder / str(place)), place) for place, cell in enumerate(listed)]
    predicted = [api.inspect(job["folder"], consumers=spec).consumers for job in jobs]
    assert all(len(found) == 1 for found in predicted)
    seen = _here(spec, jobs) if python is None else _there(python, jobs)
    return [Match(cell, found[0], saw) for cell, found, saw in zip(listed, predicted, seen, strict=True)]


def _here(spec: str, jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [loader.observe(re.split("[<>=]", spec)[0], job) for job in jobs]


def _there(python: str, jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    lines = "".join(json.dumps(job) + "\n" for job in jobs)
    command = [python, str(LOADER)]
    result = subprocess.run(command, input=lines, stdout=subprocess.PIPE, text=True, check=True)
    return [json.loads(line) for line in result.stdout.splitlines()]
