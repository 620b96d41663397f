"""What a file that replaces another takes over from it, and blocks that it shares with its source."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tieconv as api
from tests.cli.run import ok
from tieconv.execute import target as checks_module
from tieconv.execute.carry_out import execute
from tieconv.execute.target import Target, replaces_directory

from . import models
from .conftest import Mount

ACCESS, DEFAULT = "system.posix_acl_access", "system.posix_acl_default"
USER = 4321


def acl(mask: int, owner: int = 6) -> bytes:
    """An access control list: the owner and one user may read and write, the group nothing, others nothing."""
    none = 0xFFFFFFFF
    entries = [(0x01, owner, none), (0x02, owner, USER), (0x04, 0, none), (0x10, mask, none), (0x20, 0, none)]
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


@pytest.fixture
def listed(model: Path) -> Path:
    """A model whose files and directories have attributes of their own."""
    try:
        for path in (model, *model.rglob("*")):
            os.setxattr(path, "user.origin", str(path).encode())
        os.setxattr(model / "config.json", ACCESS, acl(6))
        os.setxattr(model / "model.safetensors", ACCESS, acl(4))
        os.setxattr(model, DEFAULT, acl(7, 7))
    except OSError as error:
        pytest.skip(f"no extended attributes or access control lists here: {error.strerror}")
    return model


def attributes(path: Path) -> dict[str, bytes]:
    return {name: os.getxattr(path, name) for name in os.listxattr(path)}


@pytest.mark.parametrize("plan", [models.retie, models.set_config])
def test_kept_in_place(listed: Path, plan: Callable[[Path], Any]) -> None:
    """Every file and directory has the attributes and the mode that it had, and nothing is said about it."""
    paths = (listed, *listed.rglob("*"))
    before = {path: (attributes(path), path.stat().st_mode) for path in paths}
    made = plan(listed)
    assert replaces_directory(made, Target(listed, in_place=True)) is (plan is models.retie)
    assert execute(made, Target(listed, in_place=True), reinspect=models.inspect) == ()
    assert {path: (attributes(path), path.stat().st_mode) for path in paths} == before


def test_lone_file_in_place(listed: Path) -> None:
    source = listed / "model.safetensors"
    before = attributes(source)
    execute(models.retie(source), Target(source, in_place=True), reinspect=models.inspect)
    assert attributes(source) == before


def test_a_list_of_the_directory_is_not_taken_up(listed: Path) -> None:
    """A default list gives every new file an access list; the old file had none, so its successor has none."""
    os.removexattr(listed / "config.json", ACCESS)
    os.chmod(listed / "config.json", 0o640)
    execute(models.set_config(listed), Target(listed, in_place=True), reinspect=models.inspect)
    assert set(attributes(listed / "config.json")) == {"user.origin"}
    assert (listed / "config.json").stat().st_mode & 0o777 == 0o640


def test_new_files_have_their_own(listed: Path, tmp_path: Path) -> None:
    """With -o nothing is taken over: OUT is a new model."""
    execute(models.retie(listed), Target(tmp_path / "out"), reinspect=models.inspect)
    assert all(not attributes(path) for path in (tmp_path / "out").rglob("*"))


def test_what_cannot_be_kept(listed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One note for all files; a file without its list gives the group nothing that the list's mask allowed."""
    real = os.setxattr

    def denied(path: Any, name: str, value: bytes, *more: Any, **how: Any) -> None:
        if name in (ACCESS, "user.origin"):
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        real(path, name, value, *more, **how)

    monkeypatch.setattr(os, "setxattr", denied)
    os.chmod(listed / "config.json", 0o660)
    (note,) = execute(models.retie(listed), Target(listed, in_place=True), reinspect=models.inspect)
    assert note.startswith("tieconv could not keep all extended attributes of ")
    assert "other files: " in note
    assert (listed / "config.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("number", "notes"),
    [(errno.EACCES, ("tieconv could not keep all extended attributes of config.json: all",)), (errno.EOPNOTSUPP, ())],
)
def test_what_cannot_be_read(model: Path, monkeypatch: pytest.MonkeyPatch, number: int, notes: tuple[str, ...]) -> None:
    """A system that does not show extended attributes: said once. Where there are none, nothing is said."""
    monkeypatch.setattr(os, "listxattr", models.failing(number))
    assert execute(models.set_config(model), Target(model, in_place=True), reinspect=models.inspect) == notes


def test_what_goes_meanwhile(listed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An attribute that another program removes after the listing is not lost."""
    monkeypatch.setattr(os, "getxattr", models.failing(errno.ENODATA))
    assert execute(models.set_config(listed), Target(listed, in_place=True), reinspect=models.inspect) == ()


@pytest.mark.parametrize("verb", ["retie", "check --fix"])
def test_the_note_is_printed(tmp_path: Path, verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command's own output carries it."""
    source = Path(__file__).parents[2] / "fixtures" / "models" / "llama-duplicated"
    model = Path(shutil.copytree(source, tmp_path / "model"))
    monkeypatch.delattr(os, "listxattr")
    if verb == "retie":
        printed = ok("retie --in-place", model).stderr
    else:
        printed = ok("check --no-config --fix --in-place", model).stderr
    assert "note: " in printed
    assert "tieconv could not keep all extended attributes of " in printed
    assert api.inspect(model).findings == ()


def test_signatures_of_the_old_content(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's own signature of a file is never put on another content, and that is said."""
    real = os.listxattr
    monkeypatch.setattr(os, "listxattr", lambda path: [*real(path), "security.ima"])
    (note,) = execute(models.set_config(model), Target(model, in_place=True), reinspect=models.inspect)
    assert note.endswith("config.json: security.ima")


_FIEMAP = 0xC020660B
_SYNC, _SHARED = 1, 0x2000


def shared_bytes(path: Path) -> int:
    """Bytes in extents that the file shares with another."""
    head, extent = struct.Struct("=QQLLLL"), struct.Struct("=QQQQQLLLL")
    buffer = bytearray(head.pack(0, 1 << 62, _SYNC, 0, 256, 0) + bytes(256 * extent.size))
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.ioctl(descriptor, _FIEMAP, buffer)
    finally:
        os.close(descriptor)
    count = head.unpack_from(buffer)[3]
    found = [extent.unpack_from(buffer, head.size + i * extent.size) for i in range(count)]
    return sum(entry[2] for entry in found if entry[5] & _SHARED)


@pytest.mark.parametrize("kind", ["xfs", "btrfs"])
@pytest.mark.parametrize("plan", [models.retie, models.with_bias])
def test_blocks_are_shared(mount: Mount, kind: str, plan: Any) -> None:
    """Of 40 MB nearly all is shared, though the disk could not hold a second copy of it all."""
    disk = mount(kind, 340)
    source = models.single(disk / "source", rows=64 * 1024)
    os.sync()
    before = os.statvfs(disk)
    execute(plan(source), Target(disk / "out"), reinspect=models.inspect)
    os.sync()
    after = os.statvfs(disk)
    written = (disk / "out" / "model.safetensors").stat().st_size
    assert shared_bytes(disk / "out" / "model.safetensors") > 0.999 * written - 3 * 4096
    assert (before.f_bfree - after.f_bfree) * after.f_frsize < 2_000_000
    assert (disk / "out" / "tokenizer.json").read_bytes() == (source / "tokenizer.json").read_bytes()
    assert models.tensor_bytes(disk / "out" / "model.safetensors")[models.EMBED]


@pytest.mark.parametrize("kind", ["xfs", "btrfs"])
def test_nearly_full_disk(mount: Mount, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """There the check of free space does not refuse what needs none."""
    disk = mount(kind, 340)
    source = models.single(disk / "source", rows=64 * 1024)
    monkeypatch.setattr(checks_module, "free_bytes", lambda _directory: 100_000)
    execute(models.retie(source), Target(disk / "out"), reinspect=models.inspect)
    assert models.strays(disk) == []


@pytest.mark.parametrize("kind", ["xfs", "btrfs"])
@pytest.mark.parametrize("plan", [models.retie, models.set_config])
def test_in_place(mount: Mount, kind: str, plan: Any) -> None:
    """The exchange works there too."""
    source = models.single(mount(kind, 340) / "source")
    execute(plan(source), Target(source, in_place=True), reinspect=models.inspect)
    assert models.inspect(source).config.effective
    assert models.strays(source.parent) == []
