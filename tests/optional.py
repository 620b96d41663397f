"""Skip, with the reason, what needs a package that the run says is absent; everywhere else its absence is an error.

``TIECONV_WITHOUT="torch onnx" pytest`` is a run in an environment without these packages. A test that imports one is
skipped, and a test whose command needs one carries ``@pytest.mark.needs("torch")``.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests.lazy import absent

ROOT = Path(__file__).parents[1]
_MISSING = re.compile(r"^E +ModuleNotFoundError: No module named '(\w+)", re.M)
_FRAME = re.compile(r"^(\S+?\.py):\d+: in ", re.M)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose marker names an absent package."""
    for marker in item.iter_markers("needs"):
        for name in absent().intersection(marker.args):
            pytest.skip(f"needs the package {name}")


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, Any]:
    """Skip a test module whose own imports need an absent package."""
    report = yield
    text = str(report.longrepr)
    missing = _MISSING.findall(text)
    if report.failed and missing and _skips(missing[-1], [ROOT / frame for frame in _FRAME.findall(text)]):
        report.outcome, report.longrepr = "skipped", _reason(collector.path, missing[-1])
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Skip a test, or its fixture, that imports an absent package itself."""
    report = yield
    error = call.excinfo
    if error is not None and isinstance(error.value, ModuleNotFoundError):
        name = (error.value.name or "").partition(".")[0]
        if _skips(name, [Path(entry.path) for entry in error.traceback]):
            report.outcome, report.longrepr = "skipped", _reason(item.path, name)
    return report


def _skips(name: str, frames: list[Path]) -> bool:
    """Whether the tests import ``name``; where tieconv does on their behalf, the failure stands."""
    return name in absent() and not any(frame.is_relative_to(ROOT / "tieconv") for frame in frames)


def _reason(path: Path, name: str) -> tuple[str, int, str]:
    return str(path), 0, f"Skipped: needs the package {name}"
