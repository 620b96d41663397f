"""Wrong words on the command line: one sentence and one hint, as of every other failure."""

from __future__ import annotations

import errno
import os
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
from tieconv.cli import main

LINES = {
    "foo": ('unknown command "foo"', "tieconv --help lists the commands"),
    "inspct": ('unknown command "inspct"', "did you mean tieconv inspect?"),
    "tie001": ('unknown command "tie001"', "tieconv explain TIE001"),
    "./model.safetensors": ("unknown command", "tieconv inspect ./model.safetensors"),
    "hf://org/name": ("unknown command", "tieconv inspect hf://org/name"),
    "'a b/c'": ("unknown command", "tieconv inspect 'a b/c'"),
    "--foo": ("no such option", "tieconv --help"),
    "inspect --consumer": ("no such option", "--consumers"),
    "inspect a b": ("unexpected extra argument", "tieconv inspect --help"),
    "diff a": ("missing argument 'B'", "usage: tieconv diff [OPTIONS] A B; more with: tieconv diff --help"),
    "convert": ("missing option '--to', one of: safetensors, torch", "tieconv convert --help"),
    "bias foo": ("no such command 'foo'", "tieconv bias --help"),
    "bias zero --foo": ("no such option", "tieconv bias zero --help"),
    "untie -o": ("option '-o' requires an argument", "tieconv untie --help"),
    "inspect --depth all": ("'all' is not one of", "tieconv inspect --help"),
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
