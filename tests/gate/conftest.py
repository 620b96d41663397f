"""Shared by the tests of fleets."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

NAMES = ["t5", "llama-duplicated", "bart"]


@pytest.fixture
def fleet(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with three models, one of which has a finding."""
    for name in NAMES:
        shutil.copytree(models / name, tmp_path / "fleet" / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "fleet"
