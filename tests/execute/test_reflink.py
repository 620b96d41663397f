"""On file systems that can, blocks are shared: a conversion costs no disk."""

from __future__ import annotations

import fcntl
import os
import struct
from pathlib import Path
from typing import Any

import pytest

from tieconv.execute import Target, execute
from tieconv.execute import target as checks_module

from . import models
from .conftest import Mount

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
