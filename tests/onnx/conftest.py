"""Graphs traced before or once a run, whatever the number of workers."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.onnx import faults
from tests.onnx.exported import Exported, build, cache_directory
from tests.onnx.planted.once import logits_once
from tests.onnx.recorded import recorded_traces as recorded_traces

Replay = Callable[..., Exported]


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Exported]:
    """A model and its graph by name and dtype."""
    directory = cache_directory(tmp_path_factory.getbasetemp())
    return lambda name, dtype="float32": build(name, dtype, directory)


@pytest.fixture
def replay(exported: Callable[..., Exported], monkeypatch: pytest.MonkeyPatch) -> Replay:
    """The model of this name; an export of it gets the graph of an earlier trace, with or without a fault."""
    from tieconv.onnx.export import adapter

    def use(name: str, dtype: str = "float32", fault: faults.Fault | None = None) -> Exported:
        made = exported(name, dtype)

        def save(_: object, directory: Path) -> dict[str, Any]:
            for part in ("model.onnx", "model.onnx.data"):
                shutil.copy(made.graph.parent / part, directory)
            if fault is not None:
                (directory / "model.onnx.data").unlink()
                faults.plant(made.graph, fault, directory / "model.onnx")
            return {"components": {}}

        monkeypatch.setattr(adapter, "export_graph", lambda model, inputs, opset, fuse: None)
        monkeypatch.setattr(adapter, "save", save)
        return made

    return use


@pytest.fixture(autouse=True, scope="module")
def _logits_once() -> Iterator[None]:
    """The tests of one module measure many graphs of few models: torch runs once for each."""
    with logits_once():
        yield
