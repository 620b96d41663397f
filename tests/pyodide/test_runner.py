"""The run in Pyodide reports each test: passed, left out for a reason that was checked, or a fault."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.pyodide.libraries import LibraryError, Remote, ask

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def remote() -> Iterator[Any]:
    """numpy in the process with the libraries."""
    words = [sys.executable, "-m", "tests.pyodide.libraries"]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT)
    assert process.stdin is not None and process.stdout is not None

    def asked(data: bytes) -> bytes:
        process.stdin.write(struct.pack("<Q", len(data)) + data)
        process.stdin.flush()
        return process.stdout.read(*struct.unpack("<Q", process.stdout.read(8)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Remote, "_ask", staticmethod(asked), raising=False)
        yield ask("import", "numpy")
    process.communicate()
    assert process.returncode == 0


def test_a_remote_library_answers_as_the_library(remote: Any) -> None:
    """What tests do with arrays gives the same plain values in Pyodide as here."""
    for expression in (
        "np.arange(6, dtype='<f4').reshape(2, 3).tobytes()",
        "2 * np.arange(4)[1:][::-1].astype('<i8') + 1 - np.ones(3)",
        "np.arange(4)[..., None].shape, len(np.zeros((3, 2))), bool(np.array([0]) == 0)",
        "[float(row[0]) for row in np.eye(3)], f'{np.float32(0.25):.3f}', str(np.array([1, 2]))",
        "isinstance(np.zeros(1), np.ndarray), isinstance(np.zeros(1), np.floating), isinstance(1.0, np.ndarray)",
        "np.float32.__name__, -np.int8(3), round(np.float64(1.26), 1), abs(np.array(-2))",
        "np.array(__import__('collections').OrderedDict(a=1), object).item()",
        "np.concatenate([np.zeros(1), np.ones(1)]), {'a': np.pi}, max(np.arange(3)), 2 in np.arange(3)",
    ):
        there, here = (str(eval(expression, {"np": module})) for module in (remote, np))
        assert there == here, expression


def test_a_remote_library_gets_an_open_file(remote: Any, tmp_path: Path) -> None:
    """It reads and writes at the position of the file, and moves it."""
    path = tmp_path / "file"
    path.write_bytes(b"head")
    with path.open("ab") as file:
        remote.save(file, np.arange(3).tolist())
    stream = BytesIO(path.read_bytes() + b"tail")
    assert stream.read(4) == b"head"
    assert remote.load(stream).tolist() == [0, 1, 2] and stream.read() == b"tail"


def test_a_remote_library_raises(remote: Any) -> None:
    """An error that Python itself has keeps its class; that of a library is a `LibraryError`."""
    with pytest.raises(ValueError, match="could not be broadcast"):
        remote.zeros(2) + remote.zeros(3)
    with pytest.raises(LibraryError, match="Singular matrix"):
        remote.linalg.inv(remote.zeros((2, 2)))
    with pytest.raises(LibraryError, match="cannot be derived"):

        class Array(remote.ndarray):
            pass

    array = remote.zeros(2)
    array[1] = 5
    assert array.tolist() == [0.0, 5.0]


@pytest.mark.slow
@pytest.mark.skipif(not (shutil.which("npm") and shutil.which("node")), reason="Pyodide needs npm and node")
def test_each_verdict() -> None:
    """One test of `planted.py` for each. Left out is what fails alike beside Pyodide, or says what is absent there."""
    words = [sys.executable, "-m", "tests.pyodide", "tests/pyodide/planted.py"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1, done.stdout + done.stderr
    summary = done.stdout[done.stdout.rindex("\n\n") :]
    assert "8 tests, 1 passed in Pyodide, 4 left out, 3 faults\n" in summary
    reasons = {match[2]: int(match[1]) for match in re.finditer(r"^ +(\d+)  (.+)$", summary, re.M)}
    assert reasons == {
        "starts a process": 1,
        "tieconv writes no files there": 1,
        "tieconv has no numpy and no processes there": 1,
        "Skipped: the reason": 1,
    }
    faults = re.findall(r"^tests/pyodide/planted\.py::(\w+)$", done.stdout, re.M)
    assert faults == ["test_tieconv_starts_a_process", "test_fails_there_alone", "test_fails_in_another_way"]
