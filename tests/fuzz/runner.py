"""Runs cases, holds every answer against the oracles, and keeps what fails as a seed."""

from __future__ import annotations

import hashlib
import math
import os
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.fuzz import differences, oracles
from tests.fuzz.case import SEEDS, Case, pack
from tests.fuzz.reference import UNEXPECTED, Reference, read
from tests.fuzz.targets import KEPT_FILES, maker

COMMANDS: tuple[tuple[str, ...], ...] = (
    ("check",), ("check",), ("inspect",), ("inspect",), ("inspect", "--json"), ("inspect", "--depth", "full"),
    ("inspect", "--consumers"), ("untie",),
    ("retie",), ("dedup",), ("untie", "--json"), ("retie", "--from", "embed", "--force"), ("bias", "zero"),
    ("bias", "strip"), ("set-tie", "true"), ("set-tie", "auto"), ("convert", "--to", "safetensors"),
    ("convert", "--to", "torch"), ("reindex",), ("reindex", "--add-format"), ("analyze",), ("analyze", "--json"),
    ("check", "--format", "json"), ("check", "--format", "sarif"), ("check", "--format", "github"),
    ("check", "--format", "markdown"), ("check", "--format", "junit"), ("check", "--for", "vllm"), ("diff",),
)  # fmt: skip
SAMPLED = 0.1
"""The share of refused models that the reference reader gets too, which tells how much stricter tieconv is."""
WRITERS = ("untie", "retie", "dedup", "convert --to safetensors", "convert --to torch", "set-tie true", "reindex")


@dataclass
class Tally:
    """What a run met."""

    target: str
    cases: int = 0
    refused: int = 0
    reported: int = 0
    accepted: int = 0
    sampled: int = 0
    unanswered: int = 0
    stricter: int = 0
    listed: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def line(self) -> str:
        """Return the figures as one line."""
        rate = self.cases / self.seconds if self.seconds else 0.0
        return (
            f"{self.target}: {self.cases:,} cases, {rate:.0f} a second; tieconv refused {self.refused:,}, reported "
            f"{self.reported:,}, took {self.accepted:,}; "
            f"the reference took {self.stricter:,} of {self.sampled:,} that tieconv did not; "
            f"{self.unanswered:,} without an answer of the reference; "
            f"{sum(self.listed.values()):,} listed differences; {len(self.failures)} failures"
        )


CONVERT = ("convert", "model/good", "--to", "safetensors", "--max-shard-size", "300", "-o")
_KEPT = Path(os.path.abspath(os.environ.get("TIECONV_FUZZ_SEEDS", SEEDS)))
"""Where the seed files of failures go."""


@contextmanager
def scratch() -> Iterator[Path]:
    """A directory in memory where there is one."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as folder:
        yield Path(folder)


class Runner:
    """Judges cases one after the other in one scratch directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.reference = Reference()
        self.expected: dict[str, tuple[int, bytes]] = {}

    def judge(self, case: Case, rng: random.Random, tally: Tally) -> list[str]:
        """Return everything that is wrong with tieconv's answers to a case."""
        home = self.folder / "model"
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir()
        if case.target == "hub":
            from tests.fuzz.hub import served

            with served(case) as source:
                return list(_commands(case, source, rng, self.folder))
        if case.target == "listing":
            from tests.fuzz.listings import served as listed

            with listed(case):
                return list(_listed(case, tally))
        case.write(home)
        if case.target in KEPT_FILES:
            return list(self._kept(case, home, tally))
        source = str(home / case.model) if case.model != "." else str(home)
        before = _snapshot(home)
        found = list(self._compared(case, home, Path(source), rng, tally))
        found += _commands(case, source, rng, self.folder)
        if _snapshot(home) != before:
            found.append("a command changed its source")
        return found

    def _kept(self, case: Case, home: Path, tally: Tally) -> Iterator[str]:
        """Run whole command lines; a good run writes what a run beside no damaged file writes."""
        before = _snapshot(home, case.written)
        back = os.getcwd()
        os.chdir(self.folder)
        try:
            for words in case.commands:
                answer = oracles.call(words)
                tally.refused += answer.code == 2
                tally.accepted += answer.code != 2
                yield from (f"{' '.join(words)}: {fault}" for fault in oracles.faults(answer))
                if case.target == "resume":
                    yield from self._resumed(home, answer.code)
        finally:
            os.chdir(back)
        if _snapshot(home, case.written) != before:
            yield "a command changed a file of others"

    def _resumed(self, home: Path, code: int) -> Iterator[str]:
        if not self.expected:
            oracles.call((*CONVERT, "model/clean"))
            self.expected = _content(home / "clean")
            shutil.rmtree(home / "clean")
        if code and (home / "out").exists():
            yield f"exit {code} and left an output"
        if not code and _content(home / "out") != self.expected:
            yield "the output is not that of a run that was not stopped"
        if not code and (home / ".out.tieconv-staging").exists():
            yield "left its staging directory"

    def _compared(self, case: Case, home: Path, source: Path, rng: random.Random, tally: Tally) -> Iterator[str]:
        ours = read(source)
        yield from (f"tieconv.inspect: {one}" for one in ours.reported if one.startswith(UNEXPECTED))
        tally.refused += bool(ours.refused)
        tally.reported += bool(ours.reported)
        tally.accepted += ours.silent
        for name in case.read:
            if not (home / name).is_file() or (not ours.silent and rng.random() > SAMPLED):
                continue
            theirs = self.reference.ask(case.kind, home / name)
            if theirs is None:
                tally.unanswered += 1
                continue
            if not ours.silent:
                tally.sampled += 1
                tally.stricter += not theirs.why
            if theirs.why and ours.silent and (one := differences.listed(case.kind, theirs.why)):
                tally.listed[one.reason] += 1
            seen = theirs if len(case.read) == 1 else type(theirs)(theirs.why)
            yield from differences.differences(case.kind, ours, seen)


def _listed(case: Case, tally: Tally) -> Iterator[str]:
    for words in case.commands:
        answer = oracles.call(words)
        tally.refused += answer.code == 2
        tally.accepted += answer.code != 2
        yield from (f"{' '.join(words)}: {fault}" for fault in oracles.faults(answer))


def _commands(case: Case, source: str, rng: random.Random, folder: Path) -> Iterator[str]:
    """Run one command, or those of the case, and now and then one that writes; yield what is wrong with the answers."""
    for words in case.commands or (rng.choice(COMMANDS),):
        paths = (source, source) if words[0] == "diff" else (source,)
        answer = oracles.call((words[0], *words[1:2] * (words[0] in ("bias", "set-tie")), *paths, *_rest(words)))
        yield from (f"{' '.join(words)}: {fault}" for fault in oracles.faults(answer))
    if rng.random() < 0.12:
        words = rng.choice(WRITERS)
        yield from _written(words.split(), source, folder / f"out{_suffix(words, source)}")


def _rest(words: tuple[str, ...]) -> tuple[str, ...]:
    return words[2:] if words[0] in ("bias", "set-tie") else words[1:]


def _written(words: list[str], source: str, out: Path) -> Iterator[str]:
    """Let a command write, and read what it wrote."""
    value = words[1:2] if words[0] == "set-tie" else []
    answer = oracles.call((words[0], *value, source, *words[1 + len(value) :], "-o", str(out)))
    yield from (f"{' '.join(words)} -o: {fault}" for fault in oracles.faults(answer))
    if answer.code and out.exists():
        yield f"{' '.join(words)} -o: exit {answer.code} and left an output"
    if not answer.code and out.exists():
        again = oracles.call(("inspect", str(out)))
        if again.code:
            yield f"{' '.join(words)} -o: wrote what inspect refuses: {again.stderr[:200]}"
    shutil.rmtree(out, ignore_errors=True)
    if out.exists():
        out.unlink()


def _suffix(words: str, source: str) -> str:
    """Return how the output is called where MODEL is one file, so that `inspect` knows its format."""
    kinds = {"convert --to safetensors": ".safetensors", "convert --to torch": ".bin"}
    return kinds.get(words, os.path.splitext(source)[1]) if os.path.isfile(source) else ""


def _content(home: Path) -> dict[str, tuple[int, bytes]]:
    """Return mode and bytes of each file."""
    return {path.name: (path.lstat().st_mode, path.read_bytes()) for path in home.iterdir()} if home.exists() else {}


def _snapshot(home: Path, without: tuple[str, ...] = ()) -> dict[str, tuple[int, int, int]]:
    found = {}
    for folder, below, files in os.walk(home):
        below[:] = [name for name in below if folder != str(home) or name not in without]
        for name in files:
            state = os.lstat(os.path.join(folder, name))
            found[os.path.join(folder, name)] = (state.st_ino, state.st_size, state.st_mtime_ns)
    return found


def run(
    target: str,
    cases: int,
    seed: int,
    first: int = 0,
    *,
    say: Callable[[str], None] = print,
    keep: bool = True,
    limit: float = math.inf,
) -> Tally:
    """Run ``cases`` cases of a target from number ``first`` on, or as many as ``limit`` wall seconds allow.

    Failures become seed files where ``keep`` is true.
    """
    tally = Tally(target)
    make = maker(target)
    started = time.monotonic()
    back = os.getcwd()
    with scratch() as folder:
        runner = Runner(folder)
        try:
            os.chdir(folder)  # the settings of a directory above are none of the case's
            for number in range(first, first + cases):
                if time.monotonic() - started > limit:
                    break
                rng = random.Random(f"{target}:{seed}:{number}")
                case = make(rng)
                tally.cases += 1
                for fault in runner.judge(case, rng, tally):
                    told = fault.replace(f"{folder}/", "")
                    _note(tally, case, f"case {number} of seed {seed}: {told}", say, keep)
                if tally.cases % 1000 == 0:
                    say(f"{target}: {tally.cases:,} cases, {len(tally.failures)} failures")
        finally:
            os.chdir(back)
            runner.reference.close()
    tally.seconds = time.monotonic() - started
    return tally


def _note(tally: Tally, case: Case, fault: str, say: Callable[[str], None], keep: bool) -> None:
    if len(tally.failures) < 50:
        say(f"FAILED {tally.target}: {fault}")
        if keep:
            text = pack(case, fault)
            name = f"{tally.target}-{hashlib.sha256(repr(case.files).encode()).hexdigest()[:10]}.json"
            folder = _KEPT
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
    tally.failures.append(fault)


def replay(case: Case) -> list[str]:
    """Return what is wrong with the answers to a kept case, every command tried."""
    with scratch() as folder:
        runner = Runner(folder)
        try:
            every = case if case.commands else Case(**{**case.__dict__, "commands": COMMANDS})
            return runner.judge(every, random.Random(0), Tally(case.target))
        finally:
            runner.reference.close()
