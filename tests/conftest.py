"""Shared by all tests."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests import children
from tests.patience import examples
from tests.quick_python import Server
from tests.reload.record import pytest_terminal_summary as pytest_terminal_summary

pytest_plugins = ["tests.optional", "tests.cpu", "tests.slow"]

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("TQDM_DISABLE", "1")

ROOT = Path(__file__).parent.parent

# A slow machine fails no property: examples are counted, not timed.
settings.register_profile(
    "any-machine", max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any-machine")


def pytest_collection() -> None:
    """Nothing that is made while tests are collected is garbage, then or at the end of the run."""
    gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test marked `gpu` runs where CUDA does, and is skipped with the reason elsewhere."""
    if item.get_closest_marker("gpu"):
        from tests.gpu.machine import without_gpu

        if reason := without_gpu():
            pytest.skip(reason)


@pytest.fixture(scope="session")
def models() -> Path:
    """The committed fixtures."""
    return ROOT / "fixtures" / "models"


@pytest.fixture(scope="session")
def quick_python() -> Iterator[Server]:
    """Python programs without the time of the imports."""
    server = Server()
    yield server
    server.close()


@pytest.fixture(autouse=True, scope="session")
def _one_thread_each() -> None:
    """Two workers on two cores: more threads would only wait for each other."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(autouse=True, scope="module")
def _garbage_is_young() -> None:
    """tieconv collects garbage after each session; libraries and collected tests are none, and are millions of objects.

    Without this, two fifths of the time of tests/onnx alone went there, and more where all folders ran.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _no_process_is_left() -> Iterator[None]:
    """A failed test leaves no process behind."""
    yield
    children.end_all()


_SCREEN = ("NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE", "COLUMNS", "TERM", "PYTHONPATH", "PATH", "HOME")


@pytest.fixture(autouse=True)
def _environment_is_left() -> Iterator[None]:
    """No test leaves a variable behind that decides what another one sees: they run in any order."""
    before = {name: os.environ.get(name) for name in _SCREEN}
    yield
    assert {name: os.environ.get(name) for name in _SCREEN} == before
