"""Graphs traced before or once a run, whatever the number of workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.onnx.exported import Exported, build, cache_directory
from tests.onnx.planted.once import logits_once
from tests.onnx.recorded import recorded_traces as recorded_traces


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Exported]:
    """A model and its graph by name and dtype."""
    directory = cache_directory(tmp_path_factory.getbasetemp())
    return lambda name, dtype="float32": build(name, dtype, directory)


@pytest.fixture(autouse=True, scope="module")
def _logits_once() -> Iterator[None]:
    """The tests of one module measure many graphs of few models: torch runs once for each."""
    with logits_once():
        yield
