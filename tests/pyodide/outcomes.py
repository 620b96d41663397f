"""The pytest plugin of `tests.pyodide`: what tieconv has to do without there, and a line of JSON for each test.

The same tests run twice: in Pyodide, and beside it in a Python that hides from tieconv what Pyodide lacks.
"""

from __future__ import annotations

import builtins
import ctypes
import importlib.util
import json
import os
import re
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests.pyodide.libraries import PACKAGES, ROOT, LibraryError, Remote, ask, is_within

REPORT = "TIECONV_OUTCOMES"
LACKS = {
    r"OSError: .*emscripten does not support processes": "starts a process",
    r"RuntimeError: can't start new thread": "starts a thread",
    r"ModuleNotFoundError: No module named '(_\w+|fcntl|resource|termios|pwd|grp|ssl|pty)'": "imports a module of Unix",
    r"AttributeError: module '(os|signal|socket)' has no attribute": "calls a function of Unix",
    r"FileNotFoundError: .* '/dev/": "opens a device",
    r"OSError: out of pty devices": "opens a terminal",
    r"AttributeError: module 'tests.pyodide.libraries'": "looks into a module of a library",
    r"tests.pyodide.libraries.LibraryError: a class of a library": "derives from a class of a library",
    r"tests.pyodide.libraries.LibraryError: a library gets no open file": "gives a library an open file",
    r"tests.pyodide.libraries.LibraryError: an object of a library is not": "pickles an object of a library",
    r"tests.pyodide.libraries.LibraryError: a library gets no address": "gives a library an address of memory",
    r"TypeError: catching classes that do not inherit from BaseException": "catches an exception of a library",
    r"KeyError: 'torch\.": "looks into a module of a library",
}
"""Errors of a test's own line that says what Pyodide lacks, and why the test is left out."""

MOST_REQUESTS = 20_000
"""Of a test in Pyodide: one that computes element by element would take minutes."""
_asked = [-(10**9)]  # what modules do while they are imported is not counted


def hide() -> None:
    """Hide from tieconv the packages and the users that Pyodide lacks."""
    packages = PACKAGES.union(os.environ["TIECONV_WITHOUT"].split())
    real, spec_of, module_of = builtins.__import__, importlib.util.find_spec, importlib.import_module

    def hidden(name: str, importer: dict[str, Any]) -> bool:
        return name.partition(".")[0] in packages and is_within(importer, "tieconv")

    def imported(name: str, globals: Any = None, *rest: Any, **options: Any) -> Any:
        if hidden(name, globals or {}):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, globals, *rest, **options)

    def spec(name: str, package: str | None = None) -> Any:
        return None if hidden(name, sys._getframe(1).f_globals) else spec_of(name, package)

    def module(name: str, package: str | None = None) -> Any:
        if hidden(name, sys._getframe(1).f_globals):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return module_of(name, package)

    builtins.__import__, importlib.util.find_spec, importlib.import_module = imported, spec, module
    del os.geteuid


if sys.platform != "emscripten":
    hide()


def pytest_configure(config: pytest.Config) -> None:
    """In Pyodide `pytest.importorskip` gets the libraries of the tests, and each test so many answers of them."""
    if sys.platform != "emscripten":
        return
    real = pytest.importorskip

    def importorskip(name: str, *words: Any, **options: Any) -> Any:
        return ask("import", name) if name.partition(".")[0] in PACKAGES else real(name, *words, **options)

    def address(_: object) -> int:
        raise LibraryError("a library gets no address")

    pytest.importorskip = importorskip
    ctypes.addressof = address
    asked = Remote._ask

    def counted(data: bytes) -> bytes:
        _asked[0] += 1
        if _asked[0] > MOST_REQUESTS:
            pytest.skip(f"it asks the libraries more than {MOST_REQUESTS:,} times")
        return asked(data)

    Remote._ask = staticmethod(counted)


def pytest_runtest_setup() -> None:
    """Count the requests of a test anew."""
    _asked[0] = 0


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Say of a failure what it is, and if the test's own line met what Pyodide lacks."""
    report = yield
    _write(report, call)
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, Any]:
    """Tests of a module that cannot be imported are left out, with what is absent."""
    report = yield
    if not report.passed and isinstance(collector, pytest.Module):
        full = report.longreprtext
        lines = [line[4:] for line in full.splitlines() if line.startswith("E   ")]
        text = report.longrepr[2] if report.skipped else next(filter(_lacks, lines), (lines or [full])[-1])
        lacks = None if "\ntieconv/" in full else _lacks(text)
        _line({"test": collector.nodeid, "outcome": report.outcome, "text": text, "lacks": lacks, "full": full})
    return report


def _write(report: Any, call: pytest.CallInfo[None]) -> None:
    if report.passed and report.when != "call":
        return
    error = call.excinfo
    entry = {"test": report.nodeid, "outcome": report.outcome, "text": "", "lacks": None, "full": ""}
    if report.skipped and isinstance(report.longrepr, tuple):
        entry["text"] = report.longrepr[2]
    elif error is not None:
        text = error.exconly()
        own = any(Path(part.path).is_relative_to(ROOT / "tieconv") for part in error.traceback)
        entry |= {"text": text, "lacks": None if own else _lacks(text), "full": report.longreprtext}
    _line(entry)


def _lacks(text: str) -> str | None:
    return next((reason for pattern, reason in LACKS.items() if re.match(pattern, text)), None)


def _line(entry: dict[str, Any]) -> None:
    with open(os.environ[REPORT], "a", encoding="utf-8") as file:
        file.write(json.dumps(entry) + "\n")
