"""Every hostile and honest input through the command line: what it says, and what it leaves alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import NoReturn

import pytest

import tieconv
from fixtures.hostile import Case
from tests.hostile.conftest import Answer, faults_of_text, run, snapshot
from tests.loops import case
from tests.patience import HANGS, prompt
from tests.schemas import validate
from tieconv.errors import TieconvError

LARGE = {"file-many": 5.0}  # honest and large: tests/formats/test_bounds.py measures its peers
SECONDS = 1.0
BYTES = 4096


def each(corpus: Mapping[str, Case], hold: Callable[[Case], None], *, without: Collection[str] = ()) -> None:
    """Call ``hold`` with each input that this system can make."""
    chosen = [file for name, file in corpus.items() if name not in without and not file.skip]
    assert len(chosen) > 100
    for hostile_file in chosen:
        with case(hostile_file.name):
            hold(hostile_file)


def test_inputs_that_this_system_cannot_make(corpus: Mapping[str, Case]) -> None:
    """They are left out, and the reason is printed."""
    if reasons := {file.skip for file in corpus.values()} - {None, ""}:
        pytest.skip("; ".join(sorted(map(str, reasons))))


def test_size_of_the_corpus(corpus: Mapping[str, Case]) -> None:
    """Two cases of one name would meet one directory."""
    assert len(corpus) >= 360


def assert_refusal(answer: Answer, *, as_json: bool = False) -> None:
    """One sentence, one hint, exit 2, no result on stdout, nothing that a terminal obeys."""
    assert answer.code == 2, answer
    assert (json.loads(answer.stdout)["schema"] == "tieconv.error/1") if as_json else answer.stdout == ""
    lines = answer.stderr.splitlines()
    assert len(answer.errors) == len(answer.hints) == 1, answer.stderr
    assert lines[0].startswith("error: ") and lines[-1].startswith("hint: "), answer.stderr
    assert len(lines[0]) > len("error: ") and len(lines[-1]) > len("hint: ")
    assert len(answer.stderr.encode()) < BYTES
    assert "Traceback" not in answer.stderr and "unexpected" not in answer.stderr
    assert faults_of_text(answer.stderr) == []


def test_inspect(corpus: Mapping[str, Case]) -> None:
    def hold(hostile_file: Case) -> None:
        before = snapshot(hostile_file.home)
        with prompt(LARGE.get(hostile_file.name, SECONDS)):
            answer = run("inspect", hostile_file.path)
        if hostile_file.honest:
            assert answer.code == 0, answer.stderr
            assert faults_of_text(answer.stdout + answer.stderr) == []
        else:
            assert_refusal(answer)
        assert snapshot(hostile_file.home) == before

    each(corpus, hold)


@pytest.mark.slow
def test_analyze(corpus: Mapping[str, Case]) -> None:
    """The analysis answers or refuses as the others do, and shows nothing that a terminal obeys."""

    def hold(hostile_file: Case) -> None:
        answer = run("analyze", hostile_file.path)
        if answer.code == 0:
            assert faults_of_text(answer.stdout + answer.stderr) == []
        else:
            assert_refusal(answer)

    each(corpus, hold, without=LARGE)


def test_code(corpus: Mapping[str, Case]) -> None:
    """The stable code of each refusal, and the caution of each odd model."""

    def hold(hostile_file: Case) -> None:
        if hostile_file.honest:
            codes = {caution.code for caution in tieconv.inspect(hostile_file.path, depth="header").checkpoint.cautions}
            assert (
                codes == set() if hostile_file.expect == "ok" else hostile_file.expect.removeprefix("caution:") in codes
            )
        else:
            with pytest.raises(TieconvError) as caught:
                tieconv.inspect(hostile_file.path, depth="header")
            assert caught.value.code == hostile_file.expect

    each(corpus, hold)


def no_number(text: str) -> NoReturn:
    raise AssertionError(f"{text} is not in JSON")


def test_json(corpus: Mapping[str, Case]) -> None:
    """`--json` is one document that any parser takes."""

    def hold(hostile_file: Case) -> None:
        answer = run("inspect", hostile_file.path, "--json")
        assert answer.code == 0
        validate(json.loads(answer.stdout, parse_constant=no_number), "inspect")
        assert answer.stdout.isascii() or faults_of_text(answer.stdout) == []

    each(corpus, hold, without={name for name, file in corpus.items() if not file.honest} | LARGE.keys())


@pytest.mark.slow
@pytest.mark.parametrize("command", [pytest.param("untie", marks=pytest.mark.slow), "retie"])
def test_write(corpus: Mapping[str, Case], command: str, tmp_path: Path) -> None:
    """A refused model leaves no OUT; an honest one gives a whole OUT or a reason."""

    def hold(hostile_file: Case) -> None:
        before = snapshot(hostile_file.home)
        folder = tmp_path / str(len(os.listdir(tmp_path)))
        folder.mkdir()
        out = folder / "out"
        answer = run(command, hostile_file.path, "-o", out)
        assert snapshot(hostile_file.home) == before
        if not hostile_file.honest or answer.code:
            assert_refusal(answer)
            assert os.listdir(folder) == []
            return
        assert faults_of_text(answer.stdout + answer.stderr) == []
        assert os.listdir(folder) == ["out"]
        assert run("inspect", out).code == 0

    each(corpus, hold, without=LARGE)


def test_honest_models_are_written(corpus: Mapping[str, Case], tmp_path: Path) -> None:
    """The corpus would prove nothing about writing if every write in it were refused."""
    for name in ("index-good", "config-good", "config-nan", "link-hub-blob", "shards-inside", "directory-code"):
        answer = run("untie", corpus[name].path, "-o", tmp_path / name)
        assert answer.code == 0, (name, answer.stderr)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "name", ["special-fifo", "file-name-refused-escape", "file-deep-unclosed", "directory-sparse", "config-surrogate"]
)
def test_process(corpus: Mapping[str, Case], name: str) -> None:
    """The installed program, as users run it."""
    hostile_file = corpus[name]
    done = _process("inspect", str(hostile_file.path))
    assert done.returncode == (0 if hostile_file.honest else 2)
    assert faults_of_text(done.stdout + done.stderr) == []
    assert "Traceback" not in done.stderr
    assert done.stderr.count("hint: ") == (not hostile_file.honest)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "utf-8"])
@pytest.mark.parametrize("name", ["config-architectures-long", "file-name-refused-emoji"])
def test_terminals_that_lack_characters(corpus: Mapping[str, Case], name: str, encoding: str) -> None:
    """A `…` or a name that the encoding lacks is no reason to stop."""
    hostile_file = corpus[name]
    words = [sys.executable, "-P", "-m", "tieconv", "inspect", str(hostile_file.path)]
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}
    done = subprocess.run(words, capture_output=True, env=environment)
    assert done.returncode == (0 if hostile_file.honest else 2), done.stderr
    assert b"unexpected" not in done.stderr


def test_a_refusal_prints_no_json(corpus: Mapping[str, Case]) -> None:
    for name in ("file-hole", "index-shard-parent", "config-deep", "special-fifo"):
        assert_refusal(run("inspect", corpus[name].path, "--json"), as_json=True)


def test_traceback_on_request(corpus: Mapping[str, Case]) -> None:
    done = _process("--traceback", "inspect", str(corpus["file-hole"].path))
    assert done.returncode == 2 == _process("inspect", str(corpus["file-hole"].path)).returncode
    assert done.stderr.startswith("Traceback (most recent call last):")


def _process(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-P", "-m", "tieconv", *arguments]
    return subprocess.run(program, capture_output=True, text=True, timeout=HANGS, check=False)
