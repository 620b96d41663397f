"""A copy of the repository in which modules are changed and tests run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from tests.mutants.mutations import Mutant
from tests.mutants.rooms import ROOT, UNMEASURED

LEFT_OUT = shutil.ignore_patterns(
    ".*_cache", "__pycache__", ".git", ".venv*", ".w", ".hypothesis", "shared", "dist", "build"
)
LEAST = 60.0
"""Seconds that every mutant has at least: a slow machine is no reason to count it as noticed."""


class Scratch:
    """The copy in ``folder``, and the tests of a room with the lines that each of them runs."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "copy"
        shutil.copytree(ROOT, self.root, ignore=LEFT_OUT, symlinks=True)
        self.data = folder / "coverage"
        self.tests: tuple[str, ...] = ()
        self.seconds = 0.0

    def enter(self, room: str, tests: tuple[str, ...]) -> None:
        """Run the tests of a room on the unchanged package, which they must pass; keep the lines that each one runs."""
        self.tests = tuple(path for path in tests if (self.root / path).exists())
        self.data.unlink(missing_ok=True)
        begun = time.monotonic()
        measure = [] if room in UNMEASURED else ["--cov=tieconv", "--cov-context=test", "--cov-report="]
        code, output = self._pytest([*self.tests, *measure], None, COVERAGE_FILE=str(self.data))
        if code:
            raise SystemExit(f"the tests of {room} fail without any change:\n{output[-4000:]}")
        self.seconds = time.monotonic() - begun

    def notices(self, mutant: Mutant) -> bool:
        """Whether a test fails, or runs endlessly, with the change. Lines that run on import concern every test."""
        path = self.root / mutant.file
        original = path.read_bytes()
        chosen = self.root.parent / "chosen"
        chosen.write_text("\n".join(self._covering(mutant) or self.tests), encoding="utf-8")
        path.write_bytes(mutant.source(original))
        try:
            code, output = self._pytest([f"@{chosen}", "-x"], max(LEAST, 3 * self.seconds))
        finally:
            path.write_bytes(original)
        if code not in (0, 1, 2, -9):
            raise SystemExit(f"pytest ended with {code} on {mutant}:\n{output[-4000:]}")
        return code != 0

    def _covering(self, mutant: Mutant) -> list[str]:
        """The tests that run one of the mutant's lines, in the order of `tests`; none where importing runs it."""
        from coverage import CoverageData

        if not self.data.exists():
            return []
        data = CoverageData(basename=str(self.data))
        data.read()
        lines = data.contexts_by_lineno(str(self.root / mutant.file))
        last = mutant.line + mutant.before.count("\n")
        contexts = {context for line in range(mutant.line, last + 1) for context in lines.get(line, ())}
        names = {context.rpartition("|")[0] for context in contexts} - {""}
        return sorted(names, key=lambda name: (self._rank(name), name)) if "" not in contexts else []

    def _rank(self, name: str) -> int:
        return next((rank for rank, path in enumerate(self.tests) if name.startswith(path)), len(self.tests))

    def _pytest(self, words: list[str], limit: float | None, **environment: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "-p", "no:cacheprovider", *words]
        command.append(f"--basetemp={self.root.parent / 'tmp'}")
        held = os.environ | {"PYTHONPATH": str(self.root), "PYTHONDONTWRITEBYTECODE": "1"} | environment
        try:
            done = subprocess.run(
                command,
                cwd=self.root,
                env=held,
                timeout=limit,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        except subprocess.TimeoutExpired as ended:
            return -9, str(ended)
        return done.returncode, done.stdout
