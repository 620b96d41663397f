"""A copy of the repository in which modules are changed and tests run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

from tests.mutants.mutations import Mutant
from tests.mutants.reached import Reached
from tests.mutants.rooms import ROOT, unit_of, units

LEFT_OUT = shutil.ignore_patterns(
    ".*_cache", "__pycache__", ".git", ".venv*", ".w", ".hypothesis", "shared", "dist", "build"
)
BATCHES = (24, 200)
"""How many tests the first runs of a mutant have; the last run has the rest."""
MOST = 120.0
"""Seconds of tests that a mutant gets at most; one that only a later test would notice counts as survivor."""
LEAST = 60.0
"""Seconds that every run has at least: a slow machine is no reason to count a mutant as noticed."""
NO_SUCH_TEST, NO_TESTS = 4, 5
"""Exit codes of pytest."""


class Scratch:
    """The copy in ``folder``, and the tests of a room with the lines that each of them runs."""

    def __init__(self, folder: Path, kept: Path | None = None) -> None:
        self.root = folder / "copy"
        shutil.copytree(ROOT, self.root, ignore=LEFT_OUT, symlinks=True)
        self.folder = folder
        self.kept = kept or folder / "reached"
        self.kept.mkdir(parents=True, exist_ok=True)
        self.reached = Reached((), {})
        self.times = 0

    def enter(self, room: str, tests: tuple[str, ...]) -> None:
        """Run the tests of a room on the unchanged package, unless they have run; they must pass."""
        paths = tuple(path for path in tests if (self.root / path).exists())
        wider = {unit_of(path): units().get(unit_of(path), [path]) for path in paths}
        records = {name: self._record(room, name, wide) for name, wide in wider.items()}
        self.reached = Reached(paths, records)

    def _record(self, room: str, unit: str, tests: list[str]) -> Path:
        path = self.kept / f"{unit}-{self._digest(unit)}.json"
        if not path.exists():
            words = ["-p", "tests.mutants.recorder", *tests]
            code, output = self._pytest(words, None, TIECONV_REACHED=str(path))
            if code:
                path.unlink(missing_ok=True)
                raise SystemExit(f"the tests of {room} fail without any change:\n{output[-4000:]}")
        return path

    def _digest(self, unit: str) -> str:
        digest = sha256()
        for folder in (self.root / "tieconv", self.root / "tests" / unit):
            for path in sorted(folder.rglob("*.py")) if folder.is_dir() else [folder]:
                digest.update(f"{path.relative_to(self.root)}\0".encode() + path.read_bytes())
        return digest.hexdigest()[:16]

    def notices(self, mutant: Mutant) -> bool:
        """Whether a test fails, or runs endlessly, with the change."""
        path = self.root / mutant.file
        original, times = path.read_bytes(), path.stat()
        path.write_bytes(mutant.source(original))
        self.times += 1  # compiled modules are told apart by the time of their source
        os.utime(path, (times.st_atime, times.st_mtime + 10 * self.times))
        try:
            return any(self._fails(names) for names in self._batches(mutant, original))
        finally:
            path.write_bytes(original)
            os.utime(path, (times.st_atime, times.st_mtime))

    def _batches(self, mutant: Mutant, source: bytes) -> Iterator[list[str]]:
        """The tests that reach the mutant, the likeliest to notice it first, until `MOST` seconds are spent."""
        names, spent = [], 0.0
        for name in self.reached.ordered(mutant, source):
            spent += self.reached.seconds[name]
            if names and spent > MOST:
                break
            names.append(name)
        begin = 0
        for end in (*BATCHES, len(names)):
            if names[begin:end]:
                yield names[begin:end]
            begin = max(begin, end)

    def _fails(self, names: list[str]) -> bool:
        limit = LEAST + 5 * sum(self.reached.seconds[name] for name in names)
        code, output = self._chosen(names, limit)
        if code == NO_SUCH_TEST:  # the cases of a test come from a changed table
            code, output = self._chosen(list(dict.fromkeys(name.partition("[")[0] for name in names)), limit)
        if code == NO_TESTS:
            raise SystemExit(f"pytest ran nothing of {names}:\n{output[-4000:]}")
        return code != 0

    def _chosen(self, names: list[str], limit: float) -> tuple[int, str]:
        listed = self.folder / "chosen"
        listed.write_text("\n".join(names), encoding="utf-8")
        return self._pytest([f"@{listed}", "-x"], limit)

    def _pytest(self, words: list[str], limit: float | None, **environment: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "-p", "no:cacheprovider", *words]
        command.append(f"--basetemp={self.folder / 'tmp'}")
        held = os.environ | {"PYTHONPATH": str(self.root)} | environment
        try:
            done = subprocess.run(
                command,
                cwd=self.root,
                env=held,
                timeout=limit,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
            )
        except subprocess.TimeoutExpired as ended:
            return -9, str(ended)
        return done.returncode, done.stdout
