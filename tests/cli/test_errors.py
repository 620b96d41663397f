"""Errors on a terminal and in a pipe."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from tests.conftest import ROOT
from tieconv.errors import explained

SCHEMA = ROOT / "tieconv" / "reporters" / "schemas" / "error.schema.json"


def stderr(arguments: list[str], *, terminal: bool, **more: str) -> str:
    """What the program writes to stderr, a terminal of 60 columns or a pipe."""
    command = [sys.executable, "-m", "tieconv", *arguments]
    environment = {**os.environ, "COLUMNS": "60", "PYTHONPATH": str(ROOT), **(more or {"NO_COLOR": "1"})}
    if not terminal:
        return subprocess.run(command, env=environment, stderr=subprocess.PIPE, text=True, check=False).stderr
    leader, follower = pty.openpty()
    subprocess.run(command, env=environment, stderr=follower, check=False)
    os.close(follower)
    text = os.read(leader, 1 << 16).decode().replace("\r\n", "\n")
    os.close(leader)
    return text


def test_long_sentences_are_broken_between_words(tmp_path: Path) -> None:
    """On a terminal no word is cut and the hint, which is to be copied, is one line; a pipe gets one line each."""
    (tmp_path / "a.gguf").write_bytes(b"")
    (tmp_path / "b.gguf").write_bytes(b"")
    sentence, hint = stderr(["inspect", str(tmp_path)], terminal=False).splitlines()
    *lines, hint_line = stderr(["inspect", str(tmp_path)], terminal=True).splitlines()
    assert len(lines) > 1 and " ".join(line.strip() for line in lines) == sentence
    assert hint_line == hint


def test_a_dumb_terminal_gets_no_colour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`error` is red on a terminal that has colours, and plain where TERM says that it has none."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    nowhere = ["inspect", str(tmp_path / "nowhere")]
    assert stderr(nowhere, terminal=True, TERM="xterm").startswith("\x1b[31merror")
    assert stderr(nowhere, terminal=True, TERM="dumb").startswith("error: ")


@pytest.mark.parametrize(("line", "code"), [("inspect nope", 2), ("inspect {}", 0), ("rules --select X", 2)])
def test_a_closed_stderr_leaves_the_exit_code(models: Path, line: str, code: int) -> None:
    """An error that nobody can read is no answer: 2, not the 1 of a finding."""
    words = line.format(models / "llama-tied")
    assert shell(f"{words} 2>&-").returncode == code


@pytest.mark.parametrize("line", ["inspect nope --json", "check {0} --select X --format json", "retie {1} --json"])
def test_json_of_an_error_is_a_document(models: Path, line: str) -> None:
    """Its sentence and hint are those of stderr; nothing is on stdout without --json."""
    words = line.format(models / "llama-tied", models / "llama-diverged")
    done = shell(words)
    document = json.loads(done.stdout)
    jsonschema.validate(document, json.loads(SCHEMA.read_text(encoding="utf-8")))
    assert done.returncode == 2 and document["code"]
    assert done.stderr == f"error: {document['error']}\nhint: {document['hint']}\n"
    assert shell(words.replace("--json", "").replace("--format json", "")).stdout == ""


def test_a_result_before_an_error_stays_the_only_document(models: Path, tmp_path: Path) -> None:
    """A report that cannot be written fails after the result is printed."""
    (tmp_path / "file").write_text("")
    done = shell(f"check {models / 'llama-tied'} --format json --report sarif={tmp_path / 'file' / 'x'}")
    assert done.returncode == 2 and done.stderr.startswith("error: ")
    assert json.loads(done.stdout)["schema"] == "tieconv.check/1"


def test_a_closed_stdout_is_an_error(models: Path) -> None:
    """A result that goes nowhere was not given."""
    done = shell(f"inspect {models / 'llama-tied'} >&-")
    assert done.returncode == 2 and done.stderr.startswith("error: standard output is closed\nhint: ")
    assert shell(f"inspect {models / 'llama-tied'} >&- 2>&- <&-").returncode == 2


def test_a_full_disk_behind_stdout(models: Path) -> None:
    """The error is not about a file of the model."""
    done = shell(f"inspect {models / 'llama-tied'} > /dev/full")
    assert done.returncode == 2 and done.stderr.startswith("error: a file or standard output: no space left")


def shell(words: str) -> subprocess.CompletedProcess[str]:
    """The program in a shell, whose redirections are the test."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    line = f"{sys.executable} -m tieconv {words}"
    return subprocess.run(line, env=environment, shell=True, capture_output=True, text=True, check=False)


def test_a_chain_that_python_does_not_follow_is_no_bug() -> None:
    """A graph of 1,500 Identity nodes in a row, for example."""
    sentence, hint = explained(RecursionError())
    assert "chains or nests more parts" in sentence and "bug" not in hint
