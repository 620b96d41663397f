"""Tests for `tests.pyodide` itself, one for each verdict; the suite does not collect them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tieconv
from tests.checks.fixtures.model import HEAD, LLAMA, flagged, llama, matrix, save


def test_passes(tmp_path: Path) -> None:
    """numpy writes the model beside Pyodide, and tieconv reads it there."""
    model = save(tmp_path / "model", flagged(LLAMA, True), llama(head=matrix()))
    tie = tieconv.inspect(model).word_tie
    assert tie is not None and [str(member.state) for member in tie.members] == ["canonical", "identical"]
    assert np.float32(0.5) + matrix()[0, 0] == matrix()[0, 0] + 0.5 and isinstance(matrix(), np.ndarray)


def test_starts_a_process() -> None:
    subprocess.run([sys.executable, "--version"], check=True)


def test_tieconv_starts_a_process() -> None:
    """The line that fails is one of tieconv's."""
    path = Path(tieconv.__file__).with_name("planted.py")
    exec(compile("import subprocess; subprocess.run(['true'], check=True)", path, "exec"))


def test_writes(models: Path, tmp_path: Path) -> None:
    tieconv.plan_retie(models / "llama-duplicated").execute(tmp_path / "out")


def test_measures(tmp_path: Path) -> None:
    """Only with numpy tieconv says in which rows two tables differ."""
    model = save(tmp_path / "model", flagged(LLAMA, True), llama(head=matrix(seed=1)))
    assert "numpy" not in next(found.message for found in tieconv.inspect(model).findings if HEAD in found.tensors)


def test_is_skipped() -> None:
    pytest.skip("the reason")


def test_fails_there_alone() -> None:
    assert sys.platform != "emscripten"


def test_fails_in_another_way() -> None:
    assert sys.platform == "a system that has everything"
