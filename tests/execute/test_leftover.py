"""What stands at a staging directory's name: a killed run's leftover goes, anything doubtful is refused untouched."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.refusals import failure_of
from tieconv.errors import DestinationError
from tieconv.execute import staging, tree
from tieconv.execute.carry_out import execute
from tieconv.execute.staging import SIZE, Owner, Staging, _is_free, is_cut, parse, sweep
from tieconv.execute.target import Target, staging_path
from tieconv.sources import local

from . import models

Make = Callable[[Path, Path], None]
DEAD = replace(Owner.current(), ticks=1)
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="files of another user take root")


def marked(path: Path, content: bytes = b"") -> None:
    """A leftover as a killed run leaves it."""
    path.mkdir(0o700)
    (path / "owner").write_bytes(content or DEAD.encode())
    (path / "new").mkdir()
    (path / "new" / "model.safetensors").write_bytes(b"half")


def marker_alone(path: Path, content: bytes) -> None:
    """A marker, and nothing else."""
    path.mkdir(0o700)
    (path / "owner").write_bytes(content)


def linked_valid_marker(owner: Path, model: Path) -> None:
    (model / "notes.txt").write_bytes(DEAD.encode())
    os.link(model / "notes.txt", owner)


LINK, IRREGULAR = "owner is a hard link", "owner is not a regular file"
MARKERS: dict[str, tuple[Make, str]] = {
    "linked_marker": (lambda owner, model: os.link(model / "model.safetensors", owner), LINK),
    "linked_valid_marker": (linked_valid_marker, LINK),
    "symlinked_marker": (lambda owner, model: owner.symlink_to(model / "model.safetensors"), IRREGULAR),
    "fifo_marker": (lambda owner, _: os.mkfifo(owner), IRREGULAR),
    "directory_marker": (lambda owner, _: owner.mkdir(), IRREGULAR),
}
"""What stands for the marker of a staging directory that holds nothing else."""


def symlink(path: Path, _model: Path) -> None:
    marked(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def with_marker(put: Make) -> Make:
    """Plant a directory with such a marker."""

    def plant(path: Path, model: Path) -> None:
        path.mkdir(0o700)
        put(path / "owner", model)

    return plant


def living(path: Path) -> None:
    process = os.getppid()
    ticks = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19])
    (path / "owner").write_bytes(replace(Owner.current(), pid=process, ticks=ticks).encode())


OF_A_LEFTOVER: dict[str, tuple[Callable[[Path], object], str]] = {
    "open_to_the_group": (lambda path: path.chmod(0o770), "other users have permission to write to it"),
    "open_to_others": (lambda path: path.chmod(0o1777), "other users have permission to write to it"),
    "marker_open_to_others": (
        lambda path: (path / "owner").chmod(0o666),
        "other users have permission to write to its file owner",
    ),
    "foreign_directory": (lambda path: os.chown(path, 4321, 4321), "it belongs to another user"),
    "foreign_marker": (lambda path: os.chown(path / "owner", 4321, 4321), "its file owner belongs to another user"),
    "other_machine": (
        lambda path: (path / "owner").write_bytes(Owner(1, "another-machine", "another-boot", 1).encode()),
        "process 1 on another-machine may still be writing to it",
    ),
    "living": (living, "may still be writing to it"),
    "unmarked": (lambda path: (path / "owner").unlink(), "tieconv did not make it"),
    "foreign_program": (
        lambda path: (path / "owner").write_bytes(b'{"program": "backup", "pid": 1, "host": "x"}'),
        "tieconv did not make it",
    ),
    "nested_marker": (lambda path: (path / "owner").write_bytes(b"[" * 4000), "tieconv did not make it"),
    "cut_marker_with_more": (lambda path: (path / "owner").write_bytes(b'{"program": "tie'), "tieconv did not make it"),
    "with_a_file": (lambda path: (path / "thesis.tex").write_text("mine"), r"it holds thesis\.tex"),
    "file_of_another": (lambda path: (shutil.rmtree(path), path.write_text("mine")), "it is not a directory"),
}
"""What is changed of what a killed run left, and why the result is not removed."""
NEED_ROOT = {"foreign_directory", "foreign_marker"}


def changed(change: Callable[[Path], object]) -> Make:
    """Plant a leftover and change it."""

    def plant(path: Path, _model: Path) -> None:
        marked(path)
        change(path)

    return plant


def new_is_a_symlink(path: Path, model: Path) -> None:
    marker_alone(path, DEAD.encode())
    (path / "new").symlink_to(model)


def new_is_a_hard_link(path: Path, model: Path) -> None:
    marker_alone(path, DEAD.encode())
    os.link(model / "model.safetensors", path / "new")


def planted_old(path: Path, _model: Path) -> None:
    marked(path)
    models.single(path / "old", rows=16)


def old_of_another_boot(path: Path, _model: Path) -> None:
    """An archive may guess a host and an inode, not the name of this boot."""
    path.mkdir(0o700)
    models.single(path / "old", rows=16)
    owner = replace(Owner.current(), boot="guessed", old=(path / "old").stat().st_ino)
    (path / "owner").write_bytes(owner.encode())


def old_is_a_symlink(path: Path, model: Path) -> None:
    marked(path, replace(DEAD, old=model.stat().st_ino).encode())
    (path / "old").symlink_to(model)


def whole_state(root: Path) -> dict[str, tuple[object, ...]]:
    """Of everything: inode, mode, owner, links, times and content; whatever changes shows."""
    found: dict[str, tuple[object, ...]] = {}
    for path in sorted(root.rglob("*")):
        status = path.lstat()
        content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        times = status.st_mtime_ns, status.st_ctime_ns
        found[str(path)] = (status.st_ino, status.st_mode, status.st_uid, status.st_nlink, *times, content)
    return found


DOUBTFUL = [
    *(pytest.param(with_marker(put), why, id=name) for name, (put, why) in MARKERS.items()),
    (symlink, "it is a symlink"),
    (new_is_a_symlink, "it holds new"),
    (new_is_a_hard_link, "it holds new"),
    (planted_old, "its directory old is not the one"),
    (old_of_another_boot, "its directory old is not the one"),
    (old_is_a_symlink, "it holds old"),
    *(
        pytest.param(changed(change), why, id=name, marks=[needs_root] if name in NEED_ROOT else [])
        for name, (change, why) in OF_A_LEFTOVER.items()
    ),
]


@pytest.mark.parametrize("how", ["new", "in_place"])
@pytest.mark.parametrize(("plant", "why"), DOUBTFUL)
def test_doubtful(model: Path, tmp_path: Path, plant: Make, why: str, how: str) -> None:
    """One sentence that names it, and nothing at all is touched: no content, no name, no time."""
    out = model if how == "in_place" else tmp_path / "out"
    plant(staging_path(out), model)
    plan = models.retie(model)
    before = whole_state(tmp_path)
    with pytest.raises(DestinationError, match=why) as caught:
        execute(plan, Target(out, in_place=how == "in_place"), reinspect=models.inspect)
    assert str(staging_path(out)) in caught.value.message
    assert (caught.value.code, caught.value.exit_code) == ("out.staging", 2)
    sweep(out)
    assert whole_state(tmp_path) == before


def ended(path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    marked(path, replace(Owner.current(), pid=process.pid).encode())


def of_the_first_release(path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    host = Owner.current().host
    marked(path, f'{{"program": "tieconv", "pid": {process.pid}, "host": "{host}", "start": 1763800000}}'.encode())


LEFT: dict[str, Callable[[Path], object]] = {
    "rebooted": lambda path: marked(path, replace(Owner.current(), boot="before the reboot").encode()),
    "ended": ended,
    "of_the_first_release": of_the_first_release,
    "number_used_again": lambda path: marked(path, replace(Owner.current(), pid=os.getppid(), ticks=1).encode()),
    "renamed_machine": lambda path: marked(path, replace(DEAD, host="its-old-name").encode()),
    "zeros": lambda path: marker_alone(path, b"\0" * SIZE),
    "cut_marker": lambda path: marker_alone(path, b'{"prog'),
    "empty": lambda path: path.mkdir(0o700),
}
"""What runs leave whose process has ended for certain."""


@pytest.mark.parametrize("kind", LEFT)
def test_leftover(model: Path, tmp_path: Path, kind: str) -> None:
    """A run whose process has ended for certain: what it left goes, and the next run succeeds."""
    LEFT[kind](staging_path(tmp_path / "out"))
    execute(models.retie(model), Target(tmp_path / "out"), reinspect=models.inspect)
    assert sorted(os.listdir(tmp_path)) == ["out", "source"]


def test_removing_follows_no_link(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Links in a recognised leftover go by their names; what they lead to keeps content, mode and time."""
    path = staging_path(tmp_path / "out")
    marked(path)
    os.link(model / "config.json", path / "new" / "config.json")
    (path / "new" / "file").symlink_to(model / "tokenizer.json")
    (path / "new" / "folder").symlink_to(model)
    closed = path / "new" / "closed"
    closed.mkdir(0o000)
    if hasattr(os, "O_PATH"):  # Linux before glibc 2.32, where chmod itself cannot leave symlinks alone
        chmod = os.chmod
        monkeypatch.setattr(os, "chmod", lambda path, mode: chmod(path, mode))
    with local.closing(os.open(path / "new", local.DIRECTORY)) as new:
        tree._allow(new, "closed", local.DIRECTORY | local.NO_FOLLOW)  # root opens it whatever the mode
    assert closed.stat().st_mode & 0o777 == 0o700
    os.chmod(closed, 0o000)
    before = {name: (model / name).stat().st_mtime_ns for name in models.files_under(model)}
    content = models.digest(model)
    sweep(tmp_path / "out")
    assert not os.path.lexists(path)
    assert models.digest(model) == content
    assert {name: (model / name).stat().st_mtime_ns for name in before} == before


def test_an_old_out_beside_its_successor_goes(model: Path, tmp_path: Path) -> None:
    """Killed after the second rename of a system without exchange: the new OUT stays."""
    path = staging_path(tmp_path / "out")
    path.mkdir(0o700)
    models.single(path / "old", rows=16)
    (path / "owner").write_bytes(replace(DEAD, old=(path / "old").stat().st_ino).encode())
    new = models.digest(models.single(tmp_path / "out"))
    sweep(tmp_path / "out")
    assert models.digest(tmp_path / "out") == new
    assert models.strays(tmp_path) == []


@pytest.mark.parametrize("name", ["raw", "quantised"])
def test_the_directories_of_a_killed_export_go(tmp_path: Path, name: str) -> None:
    """The exporter's graph, and its quantised form."""
    path = staging_path(tmp_path / "out")
    marked(path)
    (path / name).mkdir()
    (path / name / "model.onnx").write_bytes(b"half")
    assert sweep(tmp_path / "out") and not path.exists()


def test_deep_leftover(tmp_path: Path) -> None:
    """Directories nested beyond any model are left, not followed until descriptors run out."""
    path = staging_path(tmp_path / "out")
    marked(path)
    here = os.open(path / "new", os.O_RDONLY)
    for _ in range(300):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    sweep(tmp_path / "out")
    assert os.path.lexists(path)
    subprocess.run(["rm", "-rf", path], check=True)


def test_the_directory_is_private_and_new(tmp_path: Path) -> None:
    """Mode 0700 whatever the umask is, one marker of one link, and nothing that was there before."""
    path = staging_path(tmp_path / "out")
    marked(path)
    old = os.umask(0)
    try:
        inode = path.stat().st_ino, (path / "owner").stat().st_ino
        keep = os.open(path, os.O_RDONLY), os.open(path / "owner", os.O_RDONLY)
        owned = Staging(tmp_path / "out")
        assert path.stat().st_mode & 0o777 == 0o700
        assert (path / "owner").stat().st_mode & 0o777 == 0o600
        assert (path.stat().st_ino, (path / "owner").stat().st_ino) != inode
        assert os.listdir(path) == ["owner"]
        owned.release()
        for descriptor in keep:
            os.close(descriptor)
    finally:
        os.umask(old)


@needs_root
@pytest.mark.parametrize("change", [("chown", 4321), ("chmod", 0o777)], ids=str)
def test_another_directory_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: tuple[str, int]) -> None:
    """Swapped between its making and its opening: the directory of another user gets nothing."""
    path, real = staging_path(tmp_path / "out"), os.mkdir

    def swapped(name: str, mode: int = 0o777, **at: int) -> None:
        real(name, mode, **at)
        if name == path.name:
            (os.chmod(path, change[1]) if change[0] == "chmod" else os.chown(path, change[1], change[1]))

    monkeypatch.setattr(staging.os, "mkdir", swapped)
    with pytest.raises(DestinationError, match="in the way"):
        Staging(tmp_path / "out")
    assert os.listdir(path) == []


def test_a_directory_that_took_its_name(model: Path, tmp_path: Path) -> None:
    """Whoever may rename the staging directory gets neither a byte nor a published model out of it."""
    out, path = tmp_path / "out", staging_path(tmp_path / "out")
    planted = models.single(tmp_path / "planted")
    content = models.digest(planted)

    def swap(written: Path) -> object:
        os.rename(path, tmp_path / "aside")
        os.mkdir(path)
        os.rename(planted, path / "new")
        return models.inspect(written)

    with pytest.raises(DestinationError, match="another program replaced"):
        execute(models.retie(model), Target(out), reinspect=swap)
    assert not out.exists()
    assert models.digest(path / "new") == content


def test_a_name_taken_back_in_time(model: Path, tmp_path: Path) -> None:
    """Swapped away and back while it is written: what was written went to the directory that was held."""
    out, path = tmp_path / "out", staging_path(tmp_path / "out")

    def away(written: Path) -> object:
        os.rename(path, tmp_path / "aside")
        os.mkdir(path)
        (path / "new").mkdir()
        seen = models.inspect(written)
        (path / "new").rmdir()
        os.rmdir(path)
        os.rename(tmp_path / "aside", path)
        return seen

    execute(models.retie(model), Target(out), reinspect=away)
    assert models.files_under(out) == models.files_under(model)
    assert models.strays(tmp_path) == []


@pytest.mark.parametrize("call", ["flock", "fsync", "pwrite"])
def test_a_marker_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """A file system without locks, a full disk: nothing is left."""
    monkeypatch.setattr(fcntl if call == "flock" else os, call, models.failing(errno.ENOLCK))
    with pytest.raises(OSError, match="No locks"):
        Staging(tmp_path / "out")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("boot", ["", "another"])
def test_data_of_a_graph(tmp_path: Path, boot: str) -> None:
    """The data that a killed run named before its graph goes; of another boot, or another file, it stays."""
    path, data = staging_path(tmp_path / "m.onnx"), tmp_path / "m.onnx.data"
    data.write_bytes(b"x")
    for inode, stays in ((data.stat().st_ino + 1, True), (data.stat().st_ino, bool(boot))):
        owner = replace(DEAD, data=inode, **({"boot": boot} if boot else {}))
        marked(path, owner.encode())
        sweep(tmp_path / "m.onnx")
        assert not path.exists()
        assert data.exists() is stays


def test_markers() -> None:
    """A marker reads back; other content is none; a cut one is recognised by its beginning."""
    owner = Owner(12, "host", "boot", 34, 56)
    assert parse(owner.encode()) == owner
    assert parse(b'{"program": "tieconv", "pid": 1, "host": "x"}') == Owner(1, "x") == Owner(1, "x", "", 0, 0, 0)
    assert [parse(replace(owner, pid=pid).encode()) is None for pid in (-1, 0, (1 << 64) - 1, 1 << 64)] == [
        True, False, False, True
    ]  # fmt: skip
    assert [_is_free(pid) for pid in (0, 1, os.getppid(), os.getpid(), 1 << 70)] == [False, False, False, True, True]
    assert len(Owner.current().encode()) == SIZE
    for other in (b"", b"null", b"[]", b'{"program": "tieconv"}', b'{"program": "tieconv", "pid": true, "host": "x"}'):
        assert parse(other) is None
    assert all(is_cut(owner.encode()[:length]) for length in range(len(owner.encode().rstrip())))
    assert not is_cut(b"me")
    assert not is_cut(owner.encode())


def test_held_by_nobody_but_locked(tmp_path: Path) -> None:
    """The lock alone says that a process lives, whatever the marker says."""
    path = staging_path(tmp_path / "out")
    marked(path)
    descriptor = os.open(path / "owner", os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    assert failure_of(Staging, DestinationError, tmp_path / "out").code == "out.busy"
    os.close(descriptor)
