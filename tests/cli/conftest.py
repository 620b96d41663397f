"""Shared by the tests of the commands."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def model(models: Path, tmp_path: Path) -> Callable[[str], Path]:
    """A writable copy of a fixture by name."""

    def copy(name: str) -> Path:
        return Path(shutil.copytree(models / name, tmp_path / name))

    return copy


@pytest.fixture
def elsewhere(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work where no settings of this project are found."""
    monkeypatch.chdir(tmp_path_factory.mktemp("here"))
