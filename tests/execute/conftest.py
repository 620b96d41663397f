"""Fixtures for the tests of `execute`."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from . import models

Mount = Callable[..., Path]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model of one weight file."""
    return models.single(tmp_path / "source", metadata={"format": "pt"})


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """A model of two shards."""
    return models.sharded(tmp_path / "source")


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Mount]:
    """``mount(kind, megabytes)``: a fresh file system of that kind, unmounted at the end."""
    mounted: list[Path] = []

    def make(kind: str, megabytes: int) -> Path:
        where = tmp_path / f"mount-{len(mounted)}"
        where.mkdir()
        _mount(kind, megabytes, where, tmp_path)
        mounted.append(where)
        return where

    yield make
    for where in mounted:
        subprocess.run(["umount", "-l", where], check=True)


def _mount(kind: str, megabytes: int, where: Path, scratch: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip(f"mounting {kind} takes root")
    if kind == "tmpfs":
        command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(where)]
    else:
        if not shutil.which(f"mkfs.{kind}"):
            pytest.skip(f"mkfs.{kind} is not installed")
        image = scratch / f"{where.name}.image"
        with image.open("wb") as stream:
            stream.truncate(megabytes << 20)
        subprocess.run([f"mkfs.{kind}", "-q", image], check=True, capture_output=True)
        command = ["mount", "-o", "loop", str(image), str(where)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"{kind} cannot be mounted here: {done.stderr.strip()}")
