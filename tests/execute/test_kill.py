"""Killed at any moment: source intact, OUT absent, old or whole; the next run succeeds and tidies up."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.patience import HANGS
from tieconv.execute.target import staging_path

from . import models, processes

CALLS = (
    "mkdir,openat,flock,pwrite64,ftruncate,copy_file_range,ioctl,link,linkat,fchmod,chmod,fchown,chown,utimensat,"
    "fsync,rename,renameat2,unlink,rmdir,close"
)
"""Every call that changes a file system, and some that do not."""


@dataclass(frozen=True)
class Case:
    """One way to write: a plan of `models`, a model that it is for, and an option of the driver."""

    plan: str
    model: str
    option: str = ""

    def __str__(self) -> str:
        return f"{self.plan}-{self.model}-{self.option or 'new'}"


CASES = (
    Case("retie", "single"),
    Case("retie", "sharded"),
    Case("retie", "single", "overwrite"),
    Case("retie", "single", "in_place"),
    Case("retie", "sharded", "in_place"),
    Case("set_config", "sharded", "in_place"),
    Case("retie", "file"),
    Case("retie", "file", "in_place"),
    Case("retie", "single", "hardlink"),
)


class Stage:
    """A fresh source (and old OUT) for each kill, and what may be found after it."""

    def __init__(self, case: Case, root: Path, rows: int) -> None:
        self.case, self.root = case, root
        self._pristine = root / "pristine"
        self._pristine.mkdir()
        make = models.sharded if case.model == "sharded" else models.single
        make(self._pristine / "source", rows)
        if case.option == "overwrite":
            models.sharded(self._pristine / "out", 16)
        self.whole = self._expected()

    @property
    def work(self) -> Path:
        return self.root / "work"

    @property
    def source(self) -> Path:
        model = self.work / "source"
        return model / "model.safetensors" if self.case.model == "file" else model

    @property
    def out(self) -> Path:
        if self.case.option == "in_place":
            return self.source
        return self.work / ("out.safetensors" if self.case.model == "file" else "out")

    @property
    def command(self) -> list[str]:
        options = [self.case.option] if self.case.option else []
        return processes.command(self.case.plan, self.source, self.out, *options)

    def reset(self) -> None:
        """The state before the run."""
        shutil.rmtree(self.work, ignore_errors=True)
        shutil.copytree(self._pristine, self.work)
        self.before = models.digest(self.work / "source")
        self.old = processes.state(self.out)

    def _expected(self) -> dict[str, str] | None:
        self.reset()
        done = processes.run(self.command)
        assert done.returncode == 0, done.stderr
        return processes.state(self.out)

    def check(self) -> str:
        """What the kill left at OUT: ``old`` (or absent) or ``whole``; anything else fails."""
        found = processes.state(self.out)
        if self.case.option != "in_place":
            assert models.digest(self.work / "source") == self.before
        assert found in (self.old, self.whole), f"half written: {found}"
        self._rerun(found)
        return "whole" if found == self.whole else "old"

    def _rerun(self, found: dict[str, str] | None) -> None:
        done = processes.run(self.command)
        if found == self.whole and self.case.option in ("", "hardlink"):
            assert done.stderr.startswith("out.exists")
        else:
            assert done.returncode == 0, done.stderr
        assert processes.state(self.out) == self.whole
        assert models.strays(self.work) == []
        if self.case.option != "in_place":
            assert models.digest(self.work / "source") == self.before


def kill_at_random(stage: Stage, times: int) -> Counter[str]:
    """Kill at moments spread over the time in which a staging directory exists."""
    chance = random.Random(7)
    stage.reset()
    process = _start(stage)
    start = time.monotonic()
    process.communicate()
    length = time.monotonic() - start
    found: Counter[str] = Counter()
    for _ in range(times):
        stage.reset()
        process = _start(stage)
        time.sleep(chance.uniform(0, 0.9) * length)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        found[stage.check()] += 1
    return found


def _start(stage: Stage) -> subprocess.Popen[str]:
    """The driver at the moment at which its staging directory appears."""
    staging = staging_path(stage.out)
    process = processes.start(stage.command)
    while not os.path.lexists(staging) and process.poll() is None:
        time.sleep(0.0005)
    return process


@dataclass(frozen=True)
class Call:
    """The ``number``-th call of a name by one thread: the main one, or else the one that syncs."""

    name: str
    number: int
    main: bool


def calls_of(stage: Stage) -> list[Call]:
    """Every call of a run from the first one that has to do with the staging directory."""
    stage.reset()
    log = stage.root / "strace.log"
    done = processes.run(["strace", "-f", "-e", f"trace={CALLS}", "-o", str(log), *stage.command])
    assert done.returncode == 0, done.stderr
    lines = re.findall(r"^(\d+) +(\w+)\((.*)", log.read_text(), re.MULTILINE)
    counts: Counter[tuple[str, str]] = Counter()
    found: list[Call] = []
    for thread, name, rest in lines:
        counts[thread, name] += 1
        if found or "tieconv-staging" in rest:
            found.append(Call(name, counts[thread, name], thread == lines[0][0]))
    return found


def kill_before(stage: Stage, call: Call) -> str | None:
    """Kill as the call is entered; ``None`` where this run made fewer. strace counts for each thread."""
    stage.reset()
    inject = f"inject={call.name}:signal=KILL:when={call.number}"
    follow = [] if call.main else ["-f"]
    done = subprocess.run(
        [
            "strace",
            *follow,
            "-qq",
            "-o",
            os.devnull,
            "-e",
            f"trace={call.name}",
            "-e",
            inject,
            *stage.command,
        ],
        env=processes.environment(),
        capture_output=True,
        timeout=HANGS,
    )
    return stage.check() if done.returncode else None


needs_strace = pytest.mark.skipif(not shutil.which("strace"), reason="strace is not installed")


@pytest.mark.parametrize("case", [CASES[0], CASES[3]], ids=str)
def test_killed_at_random(case: Case, tmp_path: Path) -> None:
    """A few moments; the slow test takes many."""
    assert kill_at_random(Stage(case, tmp_path, 4096), 6).total() == 6


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_killed_at_many_moments(case: Case, tmp_path: Path) -> None:
    """Moments over the whole run, for each way to write."""
    found = kill_at_random(Stage(case, tmp_path, 32768), 20)
    print(f"\nkilled at random, {case}: {dict(found)}")


@needs_strace
@pytest.mark.parametrize("case", [CASES[1], CASES[2], CASES[4]], ids=str)
def test_killed_before_the_decisive_calls(case: Case, tmp_path: Path) -> None:
    """Before the rename and just after it."""
    stage = Stage(case, tmp_path, 64)
    calls = calls_of(stage)
    last = max(index for index, call in enumerate(calls) if call.name in ("renameat2", "rename"))
    chosen = [calls[last], *(call for call in calls[last + 1 :] if call.name in ("fsync", "unlink", "rmdir"))]
    found = [kill_before(stage, call) for call in (chosen[0], chosen[1], chosen[-1])]
    assert found[0] == "old"
    assert found[1:] == ["whole", "whole"]


@needs_strace
@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_killed_before_every_call(case: Case, tmp_path: Path) -> None:
    """Every call that touches the file system, one by one."""
    stage = Stage(case, tmp_path, 64)
    found = Counter(str(kill_before(stage, call)) for call in calls_of(stage))
    print(f"\nkilled before each call, {case}: {dict(found)}")
    assert found["old"]
    assert found["whole"]
