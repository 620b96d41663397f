"""The power fails at any moment: what is left at OUT is absent, old, or whole with all of its bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from . import power
from .kills import Case, Stage, Zygote, traced
from .test_kill import CASES, FILES, needs_strace, report


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    process = Zygote()
    yield process
    process.close()


def trace(stage: Stage) -> tuple[power.Disk, str]:
    """The disk before a run, and the calls that the run made."""
    log = stage.root / "power.log"
    with traced(stage, "-f", "-y", "-s", "4096", "-e", f"trace={power.TRACED}", "-o", str(log)):
        disk = power.Disk(stage.work)
        assert stage.zygote.end() == 0, stage.log.read_text()
    return disk, log.read_text()


def images(disk: power.Disk, out: Path, log: str) -> Iterator[tuple[power.Files, dict[power.File, tuple[int, int]]]]:
    """After each call: the files at OUT, and how much of each was written and synced."""
    for _ in disk.play(log):
        found = power.files(disk.at(out))
        yield found, {file: (file.version, file.synced) for file in found.values()}


def judge(stage: Stage) -> Counter[str]:
    disk, log = trace(stage)
    old = power.files(disk.at(stage.out))
    seen = list(images(disk, stage.out, log))
    final = power.files(disk.at(stage.out))
    assert {name.lstrip("/") or stage.out.name for name in final} == set(stage.whole or {})
    found = Counter(kind_of(files, versions, old, final) for files, versions in seen)
    steps = {tuple(files.items()) for files, versions in seen if kind_of(files, versions, old, final) == "step"}
    assert len(steps) <= ("--fix" in stage.case.verb and stage.case.how == "--in-place"), "old and new files are mixed"
    check_durable(disk, stage.out)
    return found


def kind_of(files: power.Files, states: dict[power.File, tuple[int, int]], old: power.Files, final: power.Files) -> str:
    """What an image is: a ``step`` is what one of several remedies has published."""
    if not files:
        return "absent"
    for name, file in files.items():
        assert states[file][0] == states[file][1], f"{name} has its name before its bytes are synced"
    if files == old and all(version == 0 for version, _ in states.values()):
        return "old"
    return "whole" if files == final else "step"


def check_durable(disk: power.Disk, out: Path) -> None:
    """Exit 0: every name of OUT is synced in its directory, whatever order the file system keeps."""
    parent = disk.at(out.parent)
    assert isinstance(parent, power.Directory)
    assert out.name in parent.durable
    waiting = [disk.at(out)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, power.Directory):
            assert set(node.entries) == node.durable
            waiting += node.entries.values()


@pytest.mark.sampled(8)
@needs_strace
@pytest.mark.parametrize("case", CASES + FILES, ids=str)
def test_every_image(case: Case, tmp_path: Path, zygote: Zygote) -> None:
    """Every image that keeps the names so far and only synced bytes."""
    found = judge(Stage(case, tmp_path, zygote))
    report("power cut after each call", case, found)
    assert found["whole"]
    assert found["old" if case.how in ("--in-place", "--overwrite") else "absent"]
