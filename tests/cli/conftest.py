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
