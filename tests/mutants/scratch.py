"""A copy of the repository in which modules are changed and tests run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

from tests.mutants.mutations import Mutant
from tests.mutants.reached import Reached
from tests.mutants.rooms import ROOT, unit_of, units

LEFT_OUT = shutil.ignore_patterns(
    ".*_cache", "__pycache__", ".git", ".venv*", ".w", ".hypothesis", "shared", "dist", "build"
)
LIBRARIES = (
    "click", "hypothesis", "numpy", "rich.console", "safetensors", "yaml", "jsonschema", "onnx", "onnx_ir",
    "onnxruntime", "torch", "transformers", "huggingface_hub",
)  # fmt: skip
"""What the tests use and the package does not change: loaded once."""
BATCHES = (24, 200)
"""How many tests the first runs of a mutant have; the last run has the rest."""
MOST = 120.0
"""Seconds of tests that a mutant gets at most; one that only a later test would notice counts as survivor."""
LEAST = 60.0
"""Seconds that every run has at least: a slow machine is no reason to count a mutant as noticed."""
WORDS = ("-q", "-p", "no:randomly", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning")
"""The server has loaded anyio, a plugin: pytest warns that it cannot rewrite it, and warnings are errors."""
NO_SUCH_TEST, NO_TESTS = 4, 5
"""Exit codes of pytest."""


class Scratch:
    """The copy in ``folder``, and the tests of a room with the lines that each of them runs."""

    def __init__(self, folder: Path, records_folder: Path | None = None) -> None:
        self.root = folder / "copy"
        shutil.copytree(ROOT, self.root, ignore=LEFT_OUT, symlinks=True)
        self.folder = folder
        self.records_folder = records_folder or folder / "reached"
        self.records_folder.mkdir(parents=True, exist_ok=True)
        self.reached = Reached((), {})
        self.times = 0
        self.passing: dict[str, bool] = {}
        self.server: subprocess.Popen[str] | None = None

    def close(self) -> None:
        """End the process that runs the tests."""
        if self.server is not None:
            self.server.communicate()

    def enter(self, room: str, tests: tuple[str, ...]) -> None:
        """Run the tests of a room on the unchanged package, unless they have run; they must pass."""
        paths = tuple(path for path in tests if (self.root / path).exists())
        wider = {unit_of(path): units().get(unit_of(path), [path]) for path in paths}
        records = {name: self._record(room, name, wide) for name, wide in wider.items()}
        self.reached = Reached(paths, records)

    def _record(self, room: str, unit: str, tests: list[str]) -> Path:
        path = self.records_folder / f"{unit}-{self._digest(unit)}.json"
        if not path.exists():
            words = ["-p", "tests.mutants.recorder", *tests]
            code, output = self._recorded(words, path)
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
        """Whether a test that passes without the change fails, or runs endlessly, with it."""
        path = self.root / mutant.file
        original, times = path.read_bytes(), path.stat()
        for names in self._batches(mutant, original):
            path.write_bytes(mutant.source(original))
            self.times += 1  # compiled modules are told apart by the time of their source
            os.utime(path, (times.st_atime, times.st_mtime + 10 * self.times))
            try:
                code, failed = self._run(names)
            finally:
                path.write_bytes(original)
                os.utime(path, (times.st_atime, times.st_mtime))
            if code != 0 and not failed and not self._passes(names[0]):
                raise SystemExit(f"pytest does not run {names[0]} without any change either:\n{self._output()[-4000:]}")
            if code != 0 and (not failed or any(map(self._passes, failed))):
                return True
        return False

    def _passes(self, name: str) -> bool:
        """Whether a test passes on the unchanged package here and now: each is tried once."""
        if name not in self.passing:
            self.passing[name] = self._run([name])[0] == 0
        return self.passing[name]

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

    def _run(self, names: list[str]) -> tuple[int, list[str]]:
        """The exit code of these tests, up to the first that fails, and those that failed."""
        limit = LEAST + 5 * sum(self.reached.seconds.get(name, 0.0) for name in names)
        code, failed, output = self._asked(names, limit)
        if code == NO_SUCH_TEST:  # the cases of a test come from a changed table
            code, failed, output = self._asked(list(dict.fromkeys(name.partition("[")[0] for name in names)), limit)
        if code == NO_TESTS:
            raise SystemExit(f"pytest ran nothing of {names}:\n{output[-4000:]}")
        return code, failed

    def _asked(self, names: list[str], limit: float) -> tuple[int, list[str], str]:
        chosen, output, report = (self.folder / name for name in ("chosen", "output", "report"))
        chosen.write_text("\n".join(names), encoding="utf-8")
        output.write_text("", encoding="utf-8")
        words = [*WORDS, f"@{chosen}", "-x", f"--basetemp={self.folder / 'tmp'}"]
        asked = {"words": words, "limit": limit, "output": str(output), "report": str(report)}
        if self.server is None:
            self.server = self._served()
        assert self.server.stdin is not None and self.server.stdout is not None
        print(json.dumps(asked), file=self.server.stdin, flush=True)
        answer = json.loads(self.server.stdout.readline())
        return answer["code"], answer["failed"], self._output()

    def _output(self) -> str:
        return (self.folder / "output").read_text(encoding="utf-8", errors="replace")

    def _served(self) -> subprocess.Popen[str]:
        quiet = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "TQDM_DISABLE": "1", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "tests.mutants.forked", *LIBRARIES]
        environment = os.environ | {"PYTHONPATH": str(self.root)} | quiet
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        return subprocess.Popen(command, cwd=self.root, env=environment, **pipes)

    def _recorded(self, words: list[str], path: Path) -> tuple[int, str]:
        command = [sys.executable, "-m", "pytest", *WORDS, *words, f"--basetemp={self.folder / 'tmp'}"]
        environment = os.environ | {"PYTHONPATH": str(self.root), "TIECONV_REACHED": str(path)}
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "errors": "replace"}
        done = subprocess.run(command, cwd=self.root, env=environment, text=True, **pipes)
        return done.returncode, done.stdout
