"""The corpus, written once for each worker, and the command line run in this process."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

from fixtures.hostile import Case, write_corpus
from tieconv.cli import main


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Case]:
    return {case.name: case for case in write_corpus(tmp_path_factory.mktemp("corpus"))}


@dataclass(frozen=True)
class Answer:
    """What a call of the command line gave."""

    code: int
    stdout: str
    stderr: str

    @property
    def errors(self) -> list[str]:
        return [line for line in self.stderr.splitlines() if line.startswith("error: ")]

    @property
    def hints(self) -> list[str]:
        return [line for line in self.stderr.splitlines() if line.startswith("hint: ")]


def run(*arguments: object) -> Answer:
    """`tieconv ARGUMENTS` in this process; an exception that leaves it fails the test."""
    result = CliRunner().invoke(main, [str(argument) for argument in arguments], catch_exceptions=False)
    return Answer(result.exit_code, result.stdout, result.stderr)


def snapshot(home: Path) -> dict[str, tuple[object, ...]]:
    """Everything under ``home`` that a write would change, without reading a file."""
    seen: dict[str, tuple[object, ...]] = {}
    for directory, subdirectories, files in os.walk(home):
        for name in (*subdirectories, *files):
            path = os.path.join(directory, name)
            status = os.lstat(path)
            link = os.readlink(path) if os.path.islink(path) else ""
            seen[path] = (status.st_ino, status.st_mode, status.st_size, status.st_mtime_ns, status.st_ctime_ns, link)
    return seen


def faults_of_text(text: str) -> list[str]:
    """What a terminal or a CI runner would obey in ``text``."""
    faults = [f"prints {character!a}" for character in sorted(set(text)) if not _harmless(character)]
    lines = text.split("\n")
    faults += [
        f"orders a CI runner: {line[:60]!r}" for line in lines if line.lstrip().startswith("::") or "##[" in line
    ]
    return faults


def _harmless(character: str) -> bool:
    return character == "\n" or character.isprintable()
