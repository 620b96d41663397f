"""A write that owns its staging directory: what is left when it ends."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tieconv.errors import DestinationError, RefusedError, WriteFailedError
from tieconv.execute import Target, execute
from tieconv.execute.publish import Interrupts, checked, owning
from tieconv.execute.staging import Staging
from tieconv.execute.target import staging_path

from . import models


def fail(*_: object) -> None:
    raise PermissionError(13, "no")


@pytest.fixture
def signals() -> Interrupts:
    return Interrupts()


def test_the_first_of_two_signals_decides(signals: Interrupts) -> None:
    """While both wait for the end of a block."""
    with pytest.raises(SystemExit) as caught, signals.shielded():
        signals.handle(signal.SIGTERM, None)
        signals.handle(signal.SIGINT, None)
    assert caught.value.code == 128 + signal.SIGTERM


def test_the_directory_is_there_for_the_write_alone(tmp_path: Path, signals: Interrupts) -> None:
    """What the write gives is given on, and nothing stays beside OUT."""
    seen: list[list[str]] = []

    def write(staging: Staging) -> int:
        seen.append(os.listdir(tmp_path))
        return 7

    assert owning(tmp_path / "out", signals, write) == 7
    assert (seen, os.listdir(tmp_path)) == ([[staging_path(tmp_path / "out").name]], [])


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, RefusedError("no", "x", "y")])
def test_a_write_that_fails_leaves_nothing(
    tmp_path: Path, signals: Interrupts, error: type[BaseException] | BaseException
) -> None:
    def write(staging: Staging) -> None:
        (staging.held / "raw").write_bytes(b"x")
        raise error

    with pytest.raises(error if isinstance(error, type) else type(error)):
        owning(tmp_path / "out", signals, write)
    assert os.listdir(tmp_path) == []


def test_what_cannot_be_removed_is_told(tmp_path: Path, signals: Interrupts, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model has its name, and the sentence says which directory is left and that the model is as it should be."""
    monkeypatch.setattr(Staging, "release", fail)
    with pytest.raises(WriteFailedError, match=r"tieconv could not remove its staging directory") as caught:
        owning(tmp_path / "out", signals, lambda staging: (tmp_path / "out").mkdir())
    assert caught.value.code == "write.leftover"
    assert str(tmp_path / "out") in (caught.value.hint or "")


def test_the_error_of_the_write_is_told_rather(
    tmp_path: Path, signals: Interrupts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a write that failed, not that its directory could not be removed either."""
    monkeypatch.setattr(Staging, "release", fail)
    with pytest.raises(RefusedError):
        owning(tmp_path / "out", signals, lambda staging: checked(staging.final, refuse))


def refuse() -> None:
    raise RefusedError("no", "x", "y")


def test_a_refusal_removes_what_a_dead_run_left(tmp_path: Path) -> None:
    left = staging_path(tmp_path / "out")
    left.mkdir()
    with pytest.raises(RefusedError):
        checked(tmp_path / "out", refuse)
    assert os.listdir(tmp_path) == []


def test_a_written_model_is_there_of_a_leftover(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A retie that is written, with a directory beside it that is not removed."""
    monkeypatch.setattr(Staging, "release", fail)
    with pytest.raises(WriteFailedError, match="could not remove"):
        execute(models.retie(model), Target(tmp_path / "out"), reinspect=models.inspect)
    assert models.files_under(tmp_path / "out") == models.files_under(model)


def test_a_held_directory_is_not_cleared(tmp_path: Path, signals: Interrupts) -> None:
    """Nobody else writes the same OUT meanwhile."""

    def write(staging: Staging) -> None:
        (staging.held / "raw").write_bytes(b"x")
        with pytest.raises(DestinationError):
            owning(tmp_path / "out", signals, lambda other: None)
        assert (staging.held / "raw").exists()

    owning(tmp_path / "out", signals, write)
