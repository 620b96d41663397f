"""Exports of encoder-decoders, each traced once a run."""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from pathlib import Path

import pytest

import tieconv
from tests.onnx.exported import Exported, cache_directory
from tests.onnx.layouts.measure import make

Pairs = Callable[[str], Exported]


@pytest.fixture(scope="session")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Pairs:
    """A model by name, and the directory of its export in the layout `plain`."""
    directory = cache_directory(tmp_path_factory.getbasetemp())

    def build(name: str) -> Exported:
        made = Exported(directory / name / "pair-model", directory / name / "pair")
        directory.mkdir(parents=True, exist_ok=True)
        with Path(directory, f"{name}-pair.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not made.graph.exists():
                make(name).save_pretrained(made.model)
                tieconv.export(made.model, made.graph, parity=False)
        return made

    return build
