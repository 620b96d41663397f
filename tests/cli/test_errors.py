"""Errors on a terminal and in a pipe: wrong words and every other failure give one sentence and one hint."""

from __future__ import annotations

import errno
import json
import os
import pty
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tests.cli.run import refused, run
from tests.conftest import ROOT
from tests.patience import received
from tests.schemas import validate
from tieconv.cli import main
from tieconv.errors import explained


def stderr(arguments: list[str], *, terminal: bool, **more: str) -> str:
    """What the program writes to stderr, a terminal of 60 columns or a pipe."""
    command = [sys.executable, "-m", "tieconv", *arguments]
    environment = {**os.environ, "COLUMNS": "60", "PYTHONPATH": str(ROOT), **(more or {"NO_COLOR": "1"})}
    if not terminal:
        return subprocess.run(command, env=environment, stderr=subprocess.PIPE, text=True, check=False).stderr
    leader, follower = pty.openpty()
    subprocess.run(command, env=environment, stderr=follower, check=False)
    os.close(follower)
    return received(leader).decode().replace("\r\n", "\n")


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
    validate(document, "error")
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


LINES = {
    "foo": ('unknown command "foo"', "tieconv --help lists the commands"),
    "inspct": ('unknown command "inspct"', "did you mean tieconv inspect?"),
    "tie001": ('unknown command "tie001"', "tieconv explain TIE001"),
    "./model.safetensors": ("unknown command", "tieconv inspect ./model.safetensors"),
    "hf://org/name": ("unknown command", "tieconv inspect hf://org/name"),
    "'a b/c'": ("unknown command", "tieconv inspect 'a b/c'"),
    "--foo": ("no such option", "tieconv --help"),
    "inspect --consumer": ("no such option", "--consumers"),
    "inspect a b": ("unexpected extra argument", "to compare two models: tieconv diff A B; usage: tieconv inspect"),
    "analyze a b": (
        "unexpected extra argument",
        "to compare two models: tieconv analyze TIED --against UNTIED; usage: ",
    ),
    "diff a": ("missing argument 'B'", "usage: tieconv diff [OPTIONS] A B; more with: tieconv diff --help"),
    "convert": ("missing option '--to', one of: safetensors, torch", "tieconv convert --help"),
    "bias foo": ("no such command 'foo'", "tieconv bias --help"),
    "bias zero --foo": ("no such option", "tieconv bias zero --help"),
    "untie -o": ("option '-o' requires an argument", "tieconv untie --help"),
    "inspect --depth all": ("'all' is not one of", "tieconv inspect --help"),
    "check a -j 257": ("257 is not in the range 1<=x<=256", "tieconv check --help"),
    "parity a b --provider cpu --device 0": ("--device needs --provider cuda", "tieconv parity --help"),
    "check --in-place": ("-o OUT and --in-place need --fix", "tieconv check --help"),
}


@pytest.mark.parametrize("line", LINES)
def test_a_sentence_and_the_next_command(line: str) -> None:
    """Exit 2, `error:` in lower case and `hint:`, whoever notices the fault; the same beside `--traceback`."""
    sentence, hint = LINES[line]
    assert sentence in refused(line)
    result = run(line)
    assert hint in result.stderr.splitlines()[1]
    again = run(f"{line} --traceback") if " " in line and not line.startswith(("'", "untie")) else result
    assert (again.exit_code, again.stderr) == (2, result.stderr)


def test_what_the_hint_names_can_be_run() -> None:
    """Each `--help` that is pointed to exists."""
    for line in LINES:
        hint = run(line).stderr.splitlines()[1]
        _, separator, command = hint.partition("more with: tieconv ")
        assert not separator or run(command).exit_code == 0


def test_a_word_that_cannot_be_shown() -> None:
    """Control characters of a word, such as a file's name, do not reach the terminal."""
    for line in ("\x1b[2Jx", "inspect a \x1b[2Jx", "diff --\x1b[2J"):
        assert "\x1b" not in run(shlex.join(line.split(" "))).stderr


@pytest.mark.parametrize("line", ["", "bias"])
def test_without_a_command_the_help_is_shown(line: str) -> None:
    """Exit 2, on stderr; the first screen says where to start and where findings are explained."""
    result = run(line)
    assert result.exit_code == 2 and result.stdout == ""
    assert ("Commands:" if line else "\nRepair:\n") in result.stderr
    if not line:
        assert "Start with `tieconv inspect MODEL`" in result.stderr and "`tieconv explain RULE`" in result.stderr


def test_a_model_that_may_not_be_read_is_no_wrong_usage(model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told as unreadable, with the path, and the others are checked (root may read everything: planted)."""
    closed, fine = tmp_path / "closed", model("llama-tied")
    closed.mkdir()
    real, access = os.walk, os.access
    monkeypatch.setattr(os, "access", lambda path, mode, **more: Path(path) != closed and access(path, mode, **more))

    def walk(top: str, onerror: Callable[[OSError], None], **more: object) -> Iterator[object]:
        if Path(top) == closed:
            onerror(PermissionError(errno.EACCES, "Permission denied", str(top)))
        yield from real(top, onerror=onerror, **more)

    monkeypatch.setattr(os, "walk", walk)
    result = run("check", closed, fine)
    assert result.exit_code == 2 and f"{closed} cannot be opened: permission denied" in result.stdout
    assert f"{fine}: ok" in result.stdout
    assert "cannot be opened: permission denied" in refused("inspect", closed)


@pytest.mark.needs("torch")
@pytest.mark.parametrize("model_too", [False, True])
def test_parity_tells_of_the_graph_first(model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model_too) -> None:
    """A model where the graph belongs: not an error about the directory that MODEL then stands for."""
    monkeypatch.chdir(tmp_path)
    folder = model("llama-tied")
    assert refused("parity", folder, *([folder] if model_too else [])) == f"{folder}/model.onnx: no such file"


def test_no_help_breaks_the_name_of_an_option() -> None:
    """At 80 columns, `--in-` at the end of a line and `place` on the next cannot be copied or searched."""

    def texts(command: click.Command, words: list[str]) -> Iterator[str]:
        yield CliRunner().invoke(main, [*words, "--help"], terminal_width=80).output
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                yield from texts(command.get_command(context, name), [*words, name])

    for text in texts(main, []):
        assert not re.search(r"(?<![\w-])--?[a-z][a-z-]*-\n", text), text


WITHOUT_ONNX = """
import sys
sys.modules["onnx"] = None
from tieconv.cli import main
for words in (["dedup", "x.onnx"], ["untie", "x.onnx"], ["parity", "x.onnx", "."]):
    try:
        main(words)
    except SystemExit as stop:
        print(stop.code)
"""


def test_without_onnx_commands_on_graphs_name_the_package(tmp_path: Path) -> None:
    """The base installation lacks onnx: each command says what to install, and reports no bug."""
    (tmp_path / "x.onnx").write_bytes(b"")
    ran = subprocess.run([sys.executable, "-c", WITHOUT_ONNX], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["2", "2", "2"]
    assert ran.stderr.count("reading an ONNX graph needs the package onnx, which is not installed") == 3
