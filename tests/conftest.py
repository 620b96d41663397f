"""Shared by all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.reload.report import pytest_terminal_summary as pytest_terminal_summary

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("TQDM_DISABLE", "1")

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="session")
def models() -> Path:
    """The committed fixtures."""
    return ROOT / "fixtures" / "models"


@pytest.fixture(autouse=True, scope="session")
def _one_thread_each() -> None:
    """Two workers on two cores: more threads would only wait for each other."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
