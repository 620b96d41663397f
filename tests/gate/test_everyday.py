"""Sensible defaults: what people release every day passes without a word."""

from __future__ import annotations

from pathlib import Path

import pytest

from fixtures import everyday
from tests.cli.run import ok


@pytest.mark.parametrize("depth", ["header", "candidates", "full"])
@pytest.mark.parametrize("name", everyday.NAMES)
def test_an_everyday_model_passes_in_silence(name: str, depth: str, tmp_path: Path) -> None:
    """No finding of any level at any depth, not even when notes count."""
    folder = everyday.build(name, tmp_path / "model")
    result = ok(f"check --no-config --fail-on note --depth {depth}", folder)
    assert result.stderr == "1 model: no finding. The check passed.\n"
    assert "TIE" not in result.stdout
