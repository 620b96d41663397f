"""Processor time of a test run by folder, and the folders that take more than their share.

TIECONV_CPU=print pytest ...                            prints what each folder of tests took
TIECONV_CPU=tests/project/cpu_budget.json pytest ...    and fails if one takes more than the file says

Counted are user and system time of the process that tests and of the children that it waited for, with all workers of
xdist together, so a busy machine changes little. A slower machine is measured by a fixed piece of work: the shares are
in seconds of a machine that does that work in the ``unit`` of the file.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests import lazy
from tests.quick_python import RUNNING

COLLECTION = "collection"


def pytest_configure(config: pytest.Config) -> None:
    """Record where the variable asks for it."""
    if asked := os.environ.get("TIECONV_CPU"):
        config.pluginmanager.register(Recorder(None if asked == "print" else Path(asked)), "cpu")


def spent() -> float:
    """Seconds of this process, of its children that have ended, and of the servers of `tests.quick_python`."""
    times = os.times()
    servers = sum(sum(map(int, _stat(number)[11:15])) for number in RUNNING) / os.sysconf("SC_CLK_TCK")
    return times.user + times.system + times.children_user + times.children_system + servers


def _stat(number: int) -> list[str]:
    """The fields of a process from its state on; none where the system has no /proc."""
    with suppress(OSError):
        return Path(f"/proc/{number}/stat").read_text(encoding="ascii").rpartition(") ")[2].split()
    return []


def unit() -> float:
    """Seconds that a fixed piece of work takes here, the fastest of a few."""
    taken = []
    for _ in range(7):
        start = time.process_time()
        json.loads(json.dumps([{str(number): [number] * 8} for number in range(20_000)]))
        taken.append(time.process_time() - start)
    return min(taken)


def folder_of(nodeid: str) -> str:
    """`tests/onnx` for a test in it or in a folder of it, `tests` for a test file of no folder."""
    return "/".join(nodeid.split("::")[0].split("/")[:-1][:2])


class Recorder:
    """Sums the reports of all workers. Each report carries what its process has spent since the one before it."""

    def __init__(self, budget: Path | None) -> None:
        self.budget = budget
        self.last = 0.0  # so that the first report has the imports and the collection
        self.collected = 0.0
        self.taken: Counter[str] = Counter()

    def pytest_collection_finish(self) -> None:
        lazy.import_given()  # or the folder of whatever test runs first would pay for torch
        self.collected = self.last = spent()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
        report = yield
        now = spent()
        report.cpu = {COLLECTION: self.collected, folder_of(item.nodeid): now - self.last}
        self.last, self.collected = now, 0.0
        return report

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.taken.update(getattr(report, "cpu", {}))

    def over(self) -> dict[str, tuple[float, float]]:
        """What a folder took and its share, where that is less. A folder that the file lacks has no share."""
        if self.budget is None:
            return {}
        table = json.loads(self.budget.read_text(encoding="utf-8"))
        speed = unit() / table["unit"]
        taken = {name: seconds / speed for name, seconds in self.taken.items()}
        taken["total"] = sum(taken.values())
        shares = table["seconds"]
        return {name: (took, shares.get(name, 0.0)) for name, took in taken.items() if took > shares.get(name, 0.0)}

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workerinput"):
            return
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        lines = [f"{seconds:8.1f} s  {name}" for name, seconds in self.taken.most_common()]
        lines.append(f"{sum(self.taken.values()):8.1f} s  total")
        for name, (took, share) in self.over().items():
            lines.append(f"{name} took {took:.1f} s of processor time, and its share is {share:.0f} s")
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        if reporter is not None:
            reporter.section("processor time")
            for line in lines:
                reporter.write_line(line)
