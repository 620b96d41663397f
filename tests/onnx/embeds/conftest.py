"""One export of a vision-language model, shared by the tests of this directory."""

from __future__ import annotations

from pathlib import Path

import pytest

import tieconv
from tests.onnx.embeds.families import save
from tieconv.checkpoint.graph_plan import ExportOutcome


@pytest.fixture(scope="package")
def llava(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, ExportOutcome]:
    """A tiny LLaVA, its export, and the outcome."""
    folder = tmp_path_factory.mktemp("llava")
    model = save("llava", folder / "model")
    return model, folder / "out", tieconv.export(model, folder / "out")
