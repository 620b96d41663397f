"""Ownership of a staging directory: a live process keeps it, a dead one's leftovers go, nothing else is touched."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from tests.patience import HANGS
from tieconv.errors import DestinationError, RefusedError, WriteFailedError
from tieconv.execute import tree
from tieconv.execute.carry_out import execute
from tieconv.execute.publish import Interrupts, checked, owning
from tieconv.execute.staging import Owner, Staging, sweep
from tieconv.execute.target import Target, is_staging, staging_path

from . import kills, models


def test_busy(model: Path, tmp_path: Path) -> None:
    """A second writer is told who writes; the first one is not disturbed."""
    out = tmp_path / "out"
    first = kills.start(kills.command("retie", model, out, "wait"))
    try:
        assert first.stdout is not None
        assert first.stdout.readline() == "written\n"
        with pytest.raises(DestinationError, match=rf"process {first.pid}\b") as caught:
            execute(models.retie(model), Target(out), reinspect=models.inspect)
        assert caught.value.code == "out.busy"
        sweep(out)
        assert models.strays(tmp_path) != []
    finally:
        first.communicate("go\n", timeout=HANGS)
    assert first.returncode == 0
    assert models.files_under(out) == models.files_under(model)
    assert models.strays(tmp_path) == []


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, -signal.SIGINT), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
@pytest.mark.parametrize("option", ["", "in_place"])
def test_signals(model: Path, tmp_path: Path, number: signal.Signals, code: int, option: str) -> None:
    """An interrupted write removes what it made and leaves the source as it was."""
    before = models.digest(model)
    options = ["wait", option] if option else ["wait"]
    process = kills.start(kills.command("retie", model, tmp_path / "out", *options))
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(number)
    process.communicate(timeout=HANGS)
    assert process.returncode == code
    assert models.digest(model) == before
    assert os.listdir(tmp_path) == ["source"]


@pytest.mark.skipif(sys.platform != "linux", reason="/proc shows the open files of a process")
def test_large_files_of_an_interrupted_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that ends after this one holds them, and no small file: their space takes seconds to free."""
    monkeypatch.setattr(tree, "LARGE", 1000)
    monkeypatch.setattr(tree, "HOLDERS", [])

    def write(staging: Staging) -> None:
        (staging.held / "large").write_bytes(bytes(1000))
        (staging.held / "small").write_bytes(bytes(999))
        signals.handle(signal.SIGINT, None)

    signals = Interrupts()
    with pytest.raises(KeyboardInterrupt):
        owning(tmp_path / "out", signals, write)
    assert os.listdir(tmp_path) == []
    (holder,) = cast("list[subprocess.Popen[bytes]]", tree.HOLDERS)
    with holder:
        links = []
        for path in Path(f"/proc/{holder.pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # a library that the process has loaded since
                links.append(os.readlink(path))
        assert [link.rpartition("/")[2] for link in links if str(tmp_path) in link] == ["large (deleted)"]
    assert holder.returncode == 0


def test_handlers_are_restored(model: Path, tmp_path: Path) -> None:
    """The caller's signal handlers are its own again."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGXFSZ)
    before = [signal.getsignal(number) for number in numbers]
    execute(models.retie(model), Target(tmp_path / "out"), reinspect=models.inspect)
    assert [signal.getsignal(number) for number in numbers] == before


def dead(**changes: Any) -> bytes:
    """The marker of a process of this machine that has ended."""
    return replace(Owner.current(), ticks=1, **changes).encode()


def _marked(path: Path, old: int = 0) -> None:
    (path / "owner").write_bytes(dead(old=old))
    (path / "new").mkdir(exist_ok=True)
    (path / "new" / "model.safetensors").write_bytes(b"half")
    os.chmod(path / "new", 0o500)


def test_leftovers_beside_a_finished_out(model: Path, tmp_path: Path) -> None:
    """Killed after the rename, a run leaves a directory: the next one removes it even as it refuses."""
    models.single(tmp_path / "out")
    path = staging_path(tmp_path / "out")
    path.mkdir()
    _marked(path)
    with pytest.raises(DestinationError):
        execute(models.retie(model), Target(tmp_path / "out"), reinspect=models.inspect)
    assert sorted(os.listdir(tmp_path)) == ["out", "source"]


def test_an_old_out_that_lost_its_name(model: Path, tmp_path: Path) -> None:
    """Killed between the two renames of a system without exchange: the old OUT comes back."""
    path = staging_path(tmp_path / "out")
    path.mkdir()
    old = models.digest(models.single(path / "old"))
    _marked(path, (path / "old").stat().st_ino)
    sweep(tmp_path / "out")
    assert models.digest(tmp_path / "out") == old
    assert models.strays(tmp_path) == []


def test_released_while_another_waits(tmp_path: Path) -> None:
    """Whoever opened the marker before its owner removed it does not believe in that lock."""
    first = Staging(tmp_path / "out")
    descriptor = os.open(first.path / "owner", os.O_RDWR)
    first.release()
    second = Staging(tmp_path / "out")
    assert not os.path.samestat(os.fstat(descriptor), os.lstat(second.path / "owner"))
    os.close(descriptor)
    second.release()
    assert os.listdir(tmp_path) == []


def test_many_writers_at_once(model: Path, tmp_path: Path) -> None:
    """Of several processes that start together one writes; the others are told, and nothing is left."""
    out = tmp_path / "out"
    writers = [kills.start(kills.command("retie", model, out)) for _ in range(6)]
    ends = [writer.communicate(timeout=HANGS)[1] for writer in writers]
    assert [writer.returncode for writer in writers].count(0) == 1, ends
    assert {writer.returncode for writer in writers} == {0, 2}, ends
    assert all(end.startswith(("out.busy", "out.exists")) for end in ends if end)
    assert models.files_under(out) == models.files_under(model)
    assert models.strays(tmp_path) == []


def race(model: Path, directory: Path, writers: int, rounds: int) -> Counter[str]:
    """Several processes write one OUT, in every other round over what a killed run left; what each said."""
    out, found = directory / "out", Counter[str]()
    expected = models.digest(model)
    for number in range(rounds):
        if number % 2:
            staging_path(out).mkdir(0o700)
            _marked(staging_path(out))
        children = [fork(lambda: write(model, out)) for _ in range(writers)]
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        found.update(ENDS[code] for code in codes)
        assert codes.count(0) == 1, codes
        assert models.files_under(out) == models.files_under(model)
        assert models.strays(directory) == []
        assert models.digest(model) == expected
        shutil.rmtree(out)
    return found


ENDS = {0: "wrote", 3: "out.busy", 4: "out.exists"}


def write(model: Path, out: Path) -> int:
    try:
        execute(models.retie(model), Target(out), reinspect=models.inspect)
    except DestinationError as error:
        return next(code for code, name in ENDS.items() if name == error.code)
    return 0


def fork(act: Callable[[], int]) -> int:
    """Run ``act`` in a process of its own, which ends with what it returns; its number."""
    child = os.fork()
    if child:
        return child
    code = 70
    try:
        code = act()
    finally:
        os._exit(code)


def test_races(model: Path, tmp_path: Path) -> None:
    """One writes, whoever cleared the leftover; the others say why not."""
    assert race(model, tmp_path, 5, 6)["wrote"] == 6


@pytest.mark.slow
def test_many_races(model: Path, tmp_path: Path) -> None:
    print(f"\n8 writers at once: {dict(race(model, tmp_path, 8, 100))}")


def test_names() -> None:
    """Which relative paths are a staging directory's."""
    assert is_staging(".out.tieconv-staging/new/a")
    assert is_staging("sub/.out.tieconv-staging")
    assert not is_staging("out.tieconv-staging/a")
    assert not is_staging("tokenizer.json")


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
