"""A pytest plugin that records the lines of the package that each test runs, and for how long the test runs.

``TIECONV_REACHED`` names the file. The lines are held in memory: tests may limit file sizes and fork.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import coverage
import pytest

from tests.mutants.rooms import PACKAGE, ROOT

STARTS = ("subprocess.Popen", "os.fork", "os.posix_spawn")
"""Audit events of a test that starts another process, whose lines are not measured."""


class Recorder:
    """Measures each test on its own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.seconds: dict[str, float] = {}
        self.running = ""
        self.starting: set[str] = set()
        self.elsewhere: dict[str, dict[str, list[int]]] = {}
        self.users: dict[str, set[str]] = {}
        self.context = ""
        sys.addaudithook(self._audit)
        self.coverage = coverage.Coverage(data_file=None, config_file=False, source=[str(PACKAGE)])
        self.coverage.set_option(
            "run:disable_warnings", ["already-imported", "no-data-collected", "module-not-measured"]
        )
        self.coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Lines that run before the first test have no name."""
        self._switch(item.nodeid)
        self.running = item.nodeid
        if isinstance(item, pytest.Function):
            for definitions in item._fixtureinfo.name2fixturedefs.values():
                for definition in definitions:
                    self.users.setdefault(_shared(definition), set()).add(item.nodeid)
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Iterator[None]:
        """What several tests share is made in the first of them, and its lines are those of each."""
        if fixturedef.scope == "function":
            return (yield)
        before = self.context
        self.users.setdefault(_shared(fixturedef), set()).add(self.running)
        self._switch(_shared(fixturedef))
        try:
            return (yield)
        finally:
            self._switch(before)

    def _switch(self, context: str) -> None:
        self.context = context
        self.coverage.switch_context(context)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        """The programs of `tests.quick_python` measure themselves."""
        result = yield
        server = getattr(item, "funcargs", {}).get("quick_python")
        if server is not None and server.lines:
            self.elsewhere[item.nodeid], server.lines = server.lines, {}
        return result

    def _audit(self, event: str, _: object) -> None:
        if event in STARTS:
            self.starting.add(self.running)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Set-up and tear-down count too."""
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration

    def pytest_sessionfinish(self) -> None:
        """Write what was measured: the tests by number, and for each file and line the tests that run it."""
        self.coverage.stop()
        numbers = {name: number for number, name in enumerate(self.seconds)}
        lines: dict[str, dict[int, list[int]]] = {}
        data = self.coverage.get_data()
        for path in data.measured_files():
            reached = lines[Path(path).relative_to(ROOT).as_posix()] = {}
            for line, names in data.contexts_by_lineno(path).items():
                tests = set[str]().union(*(self.users.get(name, {name}) for name in names))
                reached[line] = sorted(numbers[name] for name in tests if name in numbers)
        for name, files in self.elsewhere.items():
            for file, ran in files.items():
                for line in ran:
                    lines.setdefault(file, {}).setdefault(line, []).append(numbers[name])
        record = {"tests": self.seconds, "lines": lines, "starting": sorted(self.starting)}
        self.path.write_text(json.dumps(record), encoding="utf-8")


def _shared(fixture: pytest.FixtureDef[Any]) -> str:
    """The context of a fixture that several tests share."""
    return f"fixture {fixture.baseid} {fixture.argname}"


def pytest_configure(config: pytest.Config) -> None:
    """Record where a file is named."""
    if path := os.environ.get("TIECONV_REACHED"):
        config.pluginmanager.register(Recorder(Path(path)))
