"""One way to write, killed at a random moment or as it enters a call, and what must hold afterwards."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import children
from tieconv.execute.target import staging_path

from . import models

CALLS = (
    "mkdir,mkdirat,openat,flock,pwrite64,write,ftruncate,copy_file_range,ioctl,link,linkat,fchmod,chmod,fchown,chown,"
    "setxattr,fsetxattr,utimensat,fsync,rename,renameat,renameat2,unlink,unlinkat,rmdir,close"
)
"""Every call that changes a file system, and some that do not."""
ROOT = Path(__file__).parents[2]
HOWS = ("-o", "--overwrite", "--in-place", "--hardlink")


@dataclass(frozen=True)
class Case:
    """A verb with its options, what makes its model, and how it writes; ``file`` is the part of the model to give."""

    verb: str
    make: Callable[[Path], object]
    how: str
    file: str = ""

    def __str__(self) -> str:
        return f"{self.verb} {self.file or self.make.__name__} {self.how}".replace(" ", "_")


class Zygote:
    """The process that forks a child a command: half a second of imports is paid once."""

    def __init__(self, *modules: str) -> None:
        command = [sys.executable, "-m", "tests.execute.zygote", *modules]
        settings = {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
        environment = {**os.environ, **settings}
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen(command, **pipes, text=True, env=environment)
        assert self._read() == "ready"

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def _send(self, **request: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()

    def warm(self, arguments: list[str]) -> None:
        """Import what the command needs."""
        self._send(arguments=arguments, warm=True)
        assert self._read() == "warm"

    def start(self, arguments: list[str], log: Path, *, stop: bool = False) -> int:
        """Start a child; its number. `end` must follow."""
        self._send(arguments=arguments, log=str(log), stop=stop)
        return int(self._read())

    def end(self) -> int:
        """Wait for the child; the status that it ended with."""
        return int(self._read())

    def close(self) -> None:
        self._process.communicate()


class Stage:
    """A fresh source (and old OUT) for each kill, and what may be found after it."""

    def __init__(self, case: Case, root: Path, zygote: Zygote) -> None:
        self.case, self.root, self.zygote = case, root, zygote
        self.work, self.log = root / "work", root / "log"
        self._pristine = root / "pristine"
        self._pristine.mkdir()
        case.make(self._pristine / "source")
        if case.how == "--overwrite":
            old = next(path for path in sorted((ROOT / "fixtures" / "models").iterdir()) if path.name == "gemma")
            if case.file:
                shutil.copy(old / "model.safetensors", self.out_in(self._pristine))
            else:
                shutil.copytree(old, self.out_in(self._pristine))
        self.steps: list[dict[str, str] | None] = []
        self.whole = self._expected()

    def out_in(self, directory: Path) -> Path:
        if self.case.how == "--in-place":
            return directory / "source" / self.case.file
        return directory / ("out" + Path(self.case.file).suffix if self.case.file else "out")

    @property
    def out(self) -> Path:
        return self.out_in(self.work)

    @property
    def arguments(self) -> list[str]:
        how = {
            "-o": ["-o", str(self.out)],
            "--overwrite": ["-o", str(self.out), "--overwrite"],
            "--in-place": ["--in-place"],
            "--hardlink": ["-o", str(self.out), "--hardlink"],
        }[self.case.how]
        return [*self.case.verb.split(), str(self.work / "source" / self.case.file), *how]

    def reset(self) -> None:
        """The state before the run."""
        shutil.rmtree(self.work, ignore_errors=True)
        shutil.copytree(self._pristine, self.work)
        self.before = models.digest(self.work / "source")
        self.old = state(self.out)

    def run(self) -> int:
        """The command to its end."""
        self.zygote.start(self.arguments, self.log)
        return self.zygote.end()

    def _expected(self) -> dict[str, str] | None:
        self.reset()
        self.zygote.warm([*self.case.verb.split(), str(self.work / "source" / self.case.file)])
        assert self.run() == 0, self.log.read_text()
        return state(self.out)

    def check(self) -> str:
        """What the kill left at OUT: ``old`` (or absent) or ``whole``; anything else fails."""
        found = state(self.out)
        self._check_source()
        assert found in (self.old, self.whole, *self.steps), f"half written: {found}"
        self._rerun(found)
        return "whole" if found == self.whole else "old"

    def _check_source(self) -> None:
        if self.case.how != "--in-place":
            assert models.digest(self.work / "source") == self.before

    def _names(self) -> set[str]:
        """What may lie in the work directory when all is done."""
        return {"source", self.out.name} if self.case.how != "--in-place" else {"source"}

    def _rerun(self, found: dict[str, str] | None) -> None:
        code = self.run()
        if found == self.whole and self.case.how in ("-o", "--hardlink"):
            assert (code, "exists" in self.log.read_text()) == (2, True)
        else:
            assert code == 0, self.log.read_text()
        assert state(self.out) == self.whole
        assert set(os.listdir(self.work)) <= self._names()
        assert models.strays(self.work) == []
        self._check_source()


def kill_at_random(stage: Stage, times: int) -> Counter[str]:
    """Kill at moments spread over the time in which a staging directory exists."""
    chance = random.Random(7)
    stage.reset()
    _start(stage)
    start = time.monotonic()
    assert stage.zygote.end() == 0
    length = time.monotonic() - start
    found: Counter[str] = Counter()
    for _ in range(times):
        stage.reset()
        child = _start(stage)
        time.sleep(chance.uniform(0, 0.95) * length)
        _kill(child)
        stage.zygote.end()
        found[stage.check()] += 1
    return found


def _start(stage: Stage) -> int:
    """The child at the moment at which its staging directory appears."""
    staging = staging_path(stage.out)
    child = stage.zygote.start(stage.arguments, stage.log)
    while not os.path.lexists(staging) and os.path.exists(f"/proc/{child}"):
        time.sleep(0.0002)
    return child


def _kill(child: int) -> None:
    try:
        os.kill(child, signal.SIGKILL)
    except ProcessLookupError:
        return


@dataclass(frozen=True)
class Call:
    """The ``number``-th call of a name by one thread: the main one, or else the one that syncs."""

    name: str
    number: int
    main: bool


@contextmanager
def traced(stage: Stage, *options: str) -> Iterator[None]:
    """A run of the command with strace attached before it begins."""
    stage.reset()
    child = stage.zygote.start(stage.arguments, stage.log, stop=True)
    with subprocess.Popen(["strace", "-p", str(child), *options], stderr=subprocess.PIPE, text=True) as strace:
        assert strace.stderr is not None
        line = strace.stderr.readline()
        os.kill(child, signal.SIGCONT)
        if "attached" not in line:
            stage.zygote.end()
            pytest.skip(f"strace cannot attach to a process here: {line.strip()}")
        yield
        strace.stderr.read()


def calls_of(stage: Stage) -> list[Call]:
    """Every call of a run from the first one that has to do with the staging directory."""
    log = stage.root / "strace.log"
    with traced(stage, "-f", "-e", f"trace={CALLS}", "-o", str(log)):
        assert stage.zygote.end() == 0, stage.log.read_text()
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
    inject = f"inject={call.name}:signal=KILL:when={call.number}"
    follow = [] if call.main else ["-f"]
    with traced(stage, *follow, "-o", os.devnull, "-e", f"trace={call.name}", "-e", inject):
        status = stage.zygote.end()
    return stage.check() if status == -signal.SIGKILL else None


def spread(calls: list[Call], most: int) -> list[Call]:
    """At most so many of the calls, from the first to the last; every rename is among them."""
    step = max(1, len(calls) // most)
    chosen = {*range(0, len(calls), step), len(calls) - 1}
    chosen |= {index for index, call in enumerate(calls) if call.name.startswith("rename")}
    return [calls[index] for index in sorted(chosen)]


_TESTS = Path(__file__).resolve().parents[1]


def environment() -> dict[str, str]:
    """Where the driver finds its modules; without byte code each run makes the same calls."""
    return {**os.environ, "PYTHONPATH": f"{_TESTS}:{_TESTS.parent}", "PYTHONDONTWRITEBYTECODE": "1"}


def command(kind: str, source: Path, out: Path, *options: str) -> list[str]:
    """The command line of the driver."""
    return [sys.executable, "-m", "execute.driver", kind, str(source), str(out), *options]


def start(arguments: Sequence[str]) -> subprocess.Popen[str]:
    """Start, with pipes."""
    return children.start(
        arguments, env=environment(), text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def state(path: Path) -> dict[str, str] | None:
    """What is at ``path``; ``None`` where nothing is."""
    return models.digest(path) if os.path.lexists(path) else None
