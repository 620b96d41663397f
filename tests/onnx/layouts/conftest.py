"""Exports of graphs that transformers' exporter wrote before, so that no test of names traces a model."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.onnx.exported import Exported
from tieconv.onnx.export import adapter

Traced = Callable[[str], Exported]


@pytest.fixture
def traced(exported: Callable[..., Exported], monkeypatch: pytest.MonkeyPatch) -> Traced:
    """The model of this name; an export of it gets the graph of an earlier trace."""

    def use(name: str, dtype: str = "float32") -> Exported:
        made = exported(name, dtype)

        def save(_: object, directory: Path) -> dict[str, Any]:
            for part in ("model.onnx", "model.onnx.data"):
                shutil.copy(made.graph.parent / part, directory)
            return {"components": {}}

        monkeypatch.setattr(adapter, "export_graph", lambda *_: None)
        monkeypatch.setattr(adapter, "save", save)
        return made

    return use
