"""Run pytest in children of one process that has loaded libraries: ``python -m tests.mutants.forked LIBRARY ...``.

Each line of the input is a request, each line of the output its answer. The package and its tests are loaded by the
child alone.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import pytest


class Failures:
    """The tests that fail in a run."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Set-up and tear-down count too."""
        if report.failed:
            self.names.append(report.nodeid)


def serve() -> None:
    """Load what is installed of the libraries named, and answer each request until the input ends."""
    for name in sys.argv[1:]:
        try:
            importlib.import_module(name)
        except ImportError:
            continue
    for line in sys.stdin:
        print(json.dumps(_answer(json.loads(line))), flush=True)


def _answer(asked: dict[str, Any]) -> dict[str, Any]:
    """Exit code and failed tests; -9 where the run did not end in time."""
    report = Path(asked["report"])
    report.unlink(missing_ok=True)
    child = os.fork()
    if not child:
        _run(asked["words"], Path(asked["output"]), report)
    end = time.monotonic() + asked["limit"]
    code = None
    while code is None and time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        code = os.waitstatus_to_exitcode(status) if done else None
        time.sleep(0 if done else 0.02)
    if code is None:
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
    failed = json.loads(report.read_text(encoding="utf-8")) if report.exists() else []
    return {"code": -9 if code is None else code, "failed": failed}


def _run(words: list[str], output: Path, report: Path) -> None:
    code = 3
    try:
        os.setsid()
        stream = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        empty = os.open(os.devnull, os.O_RDONLY)
        for number, opened in enumerate((empty, stream, stream)):
            os.dup2(opened, number)
        failures = Failures()
        code = int(pytest.main(words, plugins=[failures]))
        report.write_text(json.dumps(failures.names), encoding="utf-8")
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve()
