"""What the operating system refuses: one sentence, nothing left, source and old OUT as they were."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tieconv.checkpoint.write_plan import OutputWeights
from tieconv.errors import TieconvError, WriteFailedError
from tieconv.execute import Target, execute, file_layout, publish, tree, verify
from tieconv.execute import target as checks

from . import models
from .conftest import Mount


@pytest.fixture
def small_files() -> Iterator[None]:
    """No file may grow beyond 20,000 bytes."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, old[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, old)


def fails(plan: Any, target: Target, match: str) -> WriteFailedError:
    around = Path(plan.checkpoint.root).parent
    before = models.digest(around)
    with pytest.raises(WriteFailedError, match=match) as caught:
        execute(plan, target, reinspect=models.inspect)
    assert models.digest(around) == before
    assert models.strays(around) == []
    return caught.value


@pytest.mark.parametrize("in_place", [False, True])
def test_file_size_limit(model: Path, tmp_path: Path, small_files: None, in_place: bool) -> None:
    """A file that may not grow so far is an error, not a killed process."""
    error = fails(models.retie(model), Target(tmp_path / "out", in_place=in_place), "file too large")
    assert "model.safetensors" in error.message
    assert "needed" in error.message


@pytest.mark.parametrize("overwrite", [False, True])
def test_full_disk(tmp_path: Path, mount: Mount, overwrite: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is full, as found before the first byte or in the middle of the write."""
    disk = mount("tmpfs", 2)
    source = models.single(disk / "source", rows=2048)
    if overwrite:
        models.single(disk / "out", rows=16)
    with pytest.raises(WriteFailedError, match=r"not enough space.*bytes\) needed.*bytes\) free"):
        execute(models.retie(source), Target(disk / "out", overwrite=overwrite), reinspect=models.inspect)
    monkeypatch.setattr(checks, "free_bytes", lambda _directory: 1 << 40)
    error = fails(models.retie(source), Target(disk / "out", overwrite=overwrite), "no space left on device")
    assert "needed" in error.message
    assert "free" in error.message


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS, errno.EACCES])
@pytest.mark.parametrize("option", [{}, {"in_place": True}, {"overwrite": True}])
@pytest.mark.parametrize(
    "call",
    ["fsync", "pwrite", "copy_file_range", "mkdir", "preadv", "exchange", "sync_directory", "fchmod", "ftruncate"],
)
def test_any_call_fails(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, option: dict[str, Any], call: str
) -> None:
    """Whatever call fails, and whatever is asked: all or nothing, and nothing left."""
    out = tmp_path / "out"
    if option.get("overwrite"):
        models.single(out, rows=16)

    def fail(*_arguments: Any, **_more: Any) -> Any:
        raise OSError(number, os.strerror(number))

    where: Any = {"exchange": publish, "sync_directory": tree}.get(call, os)
    if call == "exchange" and not option:
        where, call = publish, "_renameat2"
    plan = models.retie(model)
    before = models.digest(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(where, call, fail)
        with pytest.raises(TieconvError) as caught:
            execute(plan, Target(out, **option), reinspect=models.inspect)
    assert os.strerror(number).lower() in caught.value.message
    assert models.digest(tmp_path) == before
    assert models.strays(tmp_path) == []


def test_what_was_written_cannot_be_read(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An I/O error in the middle of the proof is a failed write like any other."""

    def fail(*_arguments: Any) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(verify, "read_full", fail)
    fails(models.retie(model), Target(tmp_path / "out"), "input/output error")


def test_old_out_that_cannot_be_listed(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does an error of the checks themselves reach the user as it is."""
    (tmp_path / "out").mkdir()

    def fail(*_arguments: Any) -> Any:
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))

    plan = models.retie(model)
    monkeypatch.setattr(os, "listdir", fail)
    with pytest.raises(WriteFailedError, match="permission denied"):
        checks.check_target(plan, Target(tmp_path / "out", overwrite=True))


def test_late_sync_failure(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that reports its error only at the sync keeps the model from getting its name."""
    real, count = os.fsync, [0]

    def fsync(descriptor: int) -> None:
        count[0] += 1
        if count[0] == 3:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    fails(models.retie(model), Target(tmp_path / "out"), "input/output error")


@pytest.mark.parametrize("lone", [False, True])
@pytest.mark.parametrize("exchange", [True, False])
@pytest.mark.parametrize("option", [{}, {"in_place": True}, {"overwrite": True}])
def test_name_that_does_not_become_durable(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: dict[str, Any], exchange: bool, lone: bool
) -> None:
    """A disk that fails at the very last sync gets its old names back."""
    out = tmp_path / ("out.safetensors" if lone else "out")
    if option.get("overwrite"):
        old = models.single(tmp_path / "old", rows=16)
        os.rename(old / "model.safetensors" if lone else old, out)
    if not exchange:
        if option.get("in_place") or lone:
            return  # refused, or not to be undone: the old file is gone, the new one whole

        def cannot(*_paths: Path) -> None:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

        monkeypatch.setattr(publish, "exchange", cannot)

    def fail(_path: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(publish, "sync_directory", fail)
    source = model / "model.safetensors" if lone else model
    fails(models.retie(source), Target(out, **option), "input/output error")


def test_source_that_ends_early(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A source that is cut while it is read is an error, not a loop."""
    real = file_layout.header

    def header(output: OutputWeights) -> bytes:
        os.truncate(model / "model.safetensors", 9000)
        return real(output)

    plan = models.retie(model)
    monkeypatch.setattr(file_layout, "header", header)
    monkeypatch.setattr(checks, "can_clone", lambda *_args: False)
    with pytest.raises(TieconvError, match="ended while it was read"):
        execute(plan, Target(tmp_path / "out"), reinspect=models.inspect)
    assert os.listdir(tmp_path) == ["source"]
