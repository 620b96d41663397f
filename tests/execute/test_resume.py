"""A conversion that was stopped goes on with its finished files, and only with bytes that it compared."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tieconv as api
from tests import children
from tests.cli.run import ok, refused, run
from tieconv.errors import WriteFailedError
from tieconv.execute import target
from tieconv.execute.target import staging_path
from tieconv.execute.write import Writer

from . import models

ROOT = Path(__file__).parents[2]
CONVERT = ["convert", "--to", "safetensors", "--max-shard-size", "10KB"]
SHARDS = 6


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A model, and what a run without a stop writes."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "fixtures" / "models" / "llama-untied", "model")
    ok(*CONVERT, "model", "-o", "expected")
    assert len(shards(Path("expected"))) == SHARDS
    yield Path("model")
    assert models.digest(Path("out")) == models.digest(Path("expected"))
    assert not staging_path(tmp_path / "out").exists()


def shards(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.safetensors"))


def left() -> list[Path]:
    """The weight files in the staging directory."""
    return shards(staging_path(Path.cwd() / "out") / "new")


def stop_at(number: int, error: BaseException, monkeypatch: pytest.MonkeyPatch, **options: bool) -> None:
    """Convert until the weight file ``number``, counted from 1, and stop there."""
    written = 0
    write = Writer.weights

    def stopped(self: Writer, output: object, name: str) -> None:
        nonlocal written
        written += 1
        if written == number:
            raise error
        write(self, output, name)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(Writer, "weights", stopped)
        with pytest.raises(type(error)):
            api.plan_convert("safetensors", "model", max_shard_size="10KB").execute("out", **options)  # type: ignore[arg-type]


def resumed(*options: str) -> str:
    """Run to the end; what the command says on stderr."""
    return ok(*CONVERT, "model", "-o", "out", "--resume", *options).stderr


STOPS: tuple[BaseException, ...] = (KeyboardInterrupt(), SystemExit(143), OSError(28, "No space left on device"))


@pytest.mark.parametrize("number", range(1, SHARDS + 1))
@pytest.mark.parametrize("stop", STOPS[:2], ids=["SIGINT", "SIGTERM"])
def test_goes_on_after_each_file(
    stop: BaseException, number: int, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The note counts the files that were there."""
    stop_at(number, stop, monkeypatch, resume=True)
    assert len(left()) == number - 1 and not Path("out").exists()
    notes = resumed()
    assert (f"an earlier run finished {number - 1} of {SHARDS} weight files" in notes) == (number > 1)


def test_finished_files_are_not_written_again(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop_at(4, KeyboardInterrupt(), monkeypatch, resume=True)
    inodes = {path.name: path.stat().st_ino for path in left()}
    resumed()
    assert {name: Path("out", name).stat().st_ino for name in inodes} == inodes


def test_a_full_disk_keeps_the_files(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command says so; the run after it needs only the space of what is missing."""
    with monkeypatch.context() as patch:
        write = Writer.weights
        patch.setattr(
            Writer, "weights", lambda self, output, name: full() if "00004" in name else write(self, output, name)
        )
        message = run(*CONVERT, "model", "-o", "out", "--resume").stderr
    assert "run the same command again to go on" in message and "no space left" in message
    needed = sum(path.stat().st_size for path in shards(Path("expected")))
    with monkeypatch.context() as patch:
        patch.setattr(target, "_can_share", lambda *_: False)
        patch.setattr(target, "free_bytes", lambda _: needed // 2 + 8192)
        assert "not enough space" in refused(*CONVERT, "model", "-o", "out2", "--resume")
        assert "3 of 6" in resumed()


def full() -> None:
    raise WriteFailedError("out cannot be written: no space left on device", "free some space", "write.no-space")


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def without_header(path: Path) -> None:
    """As a kill leaves a file: the header is written last."""
    path.write_bytes(bytes(path.stat().st_size))


def shorter(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def linked(path: Path) -> None:
    os.link(path, path.parents[2] / "second-name")


def symlinked(path: Path) -> None:
    path.rename(path.parents[2] / "elsewhere")
    path.symlink_to("../../elsewhere")


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGES: tuple[Callable[[Path], None], ...] = (flip, without_header, shorter, linked, symlinked, fifo, directory)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_doubtful_file_is_written_again(
    damage: Callable[[Path], None], model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it is; the files beside it are kept, and nothing outside the staging directory changes."""
    stop_at(5, KeyboardInterrupt(), monkeypatch, resume=True)
    damage(left()[1])
    outside = {path: path.read_bytes() for path in (Path("second-name"), Path("elsewhere")) if path.exists()}
    assert f"3 of {SHARDS}" in resumed()
    assert all(path.read_bytes() == data for path, data in outside.items())


def test_files_of_another_model_are_written_again(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same names, shapes and sizes, but other values."""
    stop_at(4, KeyboardInterrupt(), monkeypatch, resume=True)
    weights = model / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-50_000:] = random.Random(0).randbytes(50_000)
    weights.write_bytes(data)
    shutil.rmtree("expected")
    ok(*CONVERT, "model", "-o", "expected")
    assert "earlier run" not in resumed()


def test_a_run_of_other_sizes_leaves_nothing(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a file and not a directory."""
    stop_at(4, KeyboardInterrupt(), monkeypatch, resume=True)
    (staging_path(Path.cwd() / "out") / "new" / "sub").mkdir()
    (staging_path(Path.cwd() / "out") / "new" / "config.json").write_text("{}")
    ok("convert --to torch model -o out --resume")
    assert sorted(path.name for path in Path("out").iterdir()) == sorted(
        {path.name for path in model.iterdir()} - {"model.safetensors"} | {"pytorch_model.bin"}
    )
    shutil.rmtree("out")
    ok(*CONVERT, "model", "-o", "out")


def test_torch_files_are_taken_over(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their checksums belong to the bytes between the tensors."""
    write = Writer.text
    with monkeypatch.context() as patch:
        patch.setattr(Writer, "text", lambda *_: full())
        refused("convert --to torch --max-shard-size 30KB model -o torch --resume", after_plan=True)
    assert Writer.text is write
    assert "an earlier run finished" in ok("convert --to torch --max-shard-size 30KB model -o torch --resume").stderr
    ok("convert --to torch --max-shard-size 30KB model -o again")
    assert models.digest(Path("torch")) == models.digest(Path("again"))
    ok(*CONVERT, "model", "-o", "out")


@pytest.mark.parametrize("error", STOPS[:2])
def test_without_the_option_nothing_is_left(error: BaseException, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop_at(4, error, monkeypatch)
    assert not staging_path(Path.cwd() / "out").exists()
    ok(*CONVERT, "model", "-o", "out")


def test_a_later_run_without_the_option_starts_anew(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop_at(4, KeyboardInterrupt(), monkeypatch, resume=True)
    assert "earlier run" not in ok(*CONVERT, "model", "-o", "out").stderr


def test_a_running_conversion_is_not_taken_over(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop_at(4, KeyboardInterrupt(), monkeypatch, resume=True)
    with open(staging_path(Path.cwd() / "out") / "owner", "rb") as marker:
        fcntl.flock(marker, fcntl.LOCK_EX)
        assert "is busy" in refused(*CONVERT, "model", "-o", "out", "--resume", after_plan=True)
    assert len(left()) == 3
    assert f"3 of {SHARDS}" in resumed()


def test_a_file_of_the_killed_run_gets_the_mode_of_a_new_file(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever mode, attributes and group it has: an archive can bring such a file along."""
    for mode in (0o666, 0o6777, 0o000):
        stop_at(5, KeyboardInterrupt(), monkeypatch, resume=True)
        for path in left():
            path.chmod(mode)
            if hasattr(os, "setxattr"):
                with contextlib.suppress(OSError):  # a file system without extended attributes
                    os.setxattr(path, "user.planted", b"x")
        assert f"4 of {SHARDS}" in resumed(), oct(mode)
        for path in shards(Path("out")):
            assert path.stat().st_mode == Path("expected", path.name).stat().st_mode, (oct(mode), path.name)
            assert not (hasattr(os, "listxattr") and "user.planted" in os.listxattr(path)), (oct(mode), path.name)
        if mode:
            shutil.rmtree("out")


def test_nothing_is_taken_through_a_linked_directory(model: Path, tmp_path: Path) -> None:
    """A directory of the killed run that is a symlink lends no file: the rename would take it away from there."""
    from tieconv.execute.staging import Staging

    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "a").write_bytes(b"x")
    first = Staging(tmp_path / "other", resume=True)
    first.make_new([], lambda name, path: True)
    (first.new / "sub").symlink_to(tmp_path / "victim")
    first.leave()
    second = Staging(tmp_path / "other", resume=True)
    assert second.make_new(["sub/a"], lambda name, path: True) == frozenset()
    second.release()
    assert (tmp_path / "victim" / "a").read_bytes() == b"x"
    ok(*CONVERT, "model", "-o", "out")


@pytest.mark.parametrize("overwrite", [False, True])
def test_killed_just_after_the_rename(model: Path, monkeypatch: pytest.MonkeyPatch, overwrite: bool) -> None:
    """The rerun removes the staging directory, whatever it says about OUT, which is whole."""
    from tieconv.execute import publish as owned

    if overwrite:
        shutil.copytree(model, "out")
    words = [*CONVERT, "model", "-o", "out", "--resume", *(["--overwrite"] if overwrite else [])]
    with monkeypatch.context() as patch:
        patch.setattr(owned, "_release", lambda staging: staging.leave())  # as SIGKILL leaves it
        ok(*words)
    assert staging_path(Path.cwd() / "out").exists()
    if overwrite:
        ok(*words)
    else:
        assert "out exists" in refused(*words)
    assert not staging_path(Path.cwd() / "out").exists()


def test_an_old_output_is_replaced(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(model, "out")
    stop_at(4, KeyboardInterrupt(), monkeypatch, resume=True, overwrite=True)
    assert models.digest(Path("out")) == models.digest(model)
    assert f"3 of {SHARDS}" in resumed("--overwrite")


def test_where_a_run_cannot_be_resumed(model: Path) -> None:
    assert "--resume needs -o OUT" in refused(*CONVERT, "model", "--in-place", "--resume")
    assert "only a write to a local path" in refused(*CONVERT, "model", "-o", "s3://bucket/out", "--resume")
    ok(*CONVERT, "model", "-o", "out")


@pytest.mark.slow
def test_killed_until_it_is_done(model: Path) -> None:
    """SIGKILL and SIGTERM at random moments: OUT is absent or whole, and the last run ends it."""
    command = [sys.executable, "-P", "-m", "tieconv", *CONVERT, "model", "-o", "out", "--resume"]
    chance = random.Random(7)
    started = time.monotonic()
    subprocess.run([*command[:-3], "-o", "timed"], check=True, capture_output=True)
    takes = time.monotonic() - started
    for number in range(12):
        process = children.start(command, stderr=subprocess.PIPE, text=True)
        time.sleep(takes * chance.uniform(0.5, 1))
        process.send_signal((signal.SIGKILL, signal.SIGTERM)[number % 2])
        process.communicate()
        assert not Path("out").exists() or models.digest(Path("out")) == models.digest(Path("expected"))
        if Path("out").exists():
            shutil.rmtree("out")
    resumed()
