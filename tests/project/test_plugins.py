"""The plugins of the suite: skipped packages, processor time by folder, and which cases run each time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

from tests import lazy, optional
from tests.cpu import COLLECTION, folder_of, unit

pytest_plugins = ["pytester"]
PLUGIN = "from tests.optional import *  # noqa\n"
IMPORTS = "import nowhere_to_be_found.inside\ndef test_it(): pass\n"
CALLS = """
import pytest
def test_it():
    import nowhere_to_be_found
@pytest.fixture
def made():
    import nowhere_to_be_found
def test_fixture(made): pass
@pytest.mark.needs("nowhere_to_be_found")
def test_marked(): raise AssertionError
def test_other():
    import somewhere_else_to_be_found
"""


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    pytester.makeconftest(PLUGIN)
    pytester.makeini("[pytest]\nmarkers =\n    needs: packages")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    return pytester


def test_an_absent_package_skips_with_a_reason(suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """At import, in a test, in a fixture and by marker; another package that is missing still fails."""
    monkeypatch.setenv("TIECONV_WITHOUT", "torch nowhere_to_be_found")
    suite.makepyfile(test_imports=IMPORTS, test_calls=CALLS)
    result = suite.runpytest_subprocess("-ra", "-p", "no:randomly", "-p", "no:xdist")
    result.assert_outcomes(skipped=4, failed=1)
    assert str(result.stdout).count("needs the package nowhere_to_be_found") >= 2


def test_without_the_variable_nothing_is_skipped(suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that should be there is an error."""
    monkeypatch.delenv("TIECONV_WITHOUT", raising=False)
    suite.makepyfile(test_imports=IMPORTS, test_calls=CALLS)
    result = suite.runpytest_subprocess("-p", "no:randomly", "-p", "no:xdist", "--continue-on-collection-errors")
    result.assert_outcomes(errors=2, failed=3)


def test_an_import_by_tieconv_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """The base needs no framework: where tieconv's own frame is on the way, the failure stands."""
    monkeypatch.setenv("TIECONV_WITHOUT", "torch")
    test, own = optional.ROOT / "tests" / "x.py", optional.ROOT / "tieconv" / "api.py"
    assert optional._skips("torch", [test])
    assert not optional._skips("torch", [test, own]) and not optional._skips("onnx", [test])


ROOT = Path(__file__).parents[2]
TABLE = ROOT / "tests" / "project" / "cpu_budget.json"
TEST = """
import subprocess, sys, time

def test_work():
    spin = "import time\\nwhile time.process_time() < 0.4: pass"
    subprocess.run([sys.executable, "-c", spin], check=True)
    time.sleep(0.2)
"""


def test_each_folder_has_a_share() -> None:
    """Every folder with tests, and the whole: ten minutes."""
    shares = json.loads(TABLE.read_text(encoding="utf-8"))["seconds"]
    folders = {folder_of(path.relative_to(ROOT).as_posix()) for path in (ROOT / "tests").rglob("test_*.py")}
    assert shares.keys() == {*folders, COLLECTION, "total"}
    assert shares["total"] == 600


def measured(folder: Path, table: str, workers: str) -> subprocess.CompletedProcess[str]:
    """A run of one test in `tests/one`, which may take 0.1 or 600 s by the tables of ``folder``."""
    (folder / "tests" / "one").mkdir(parents=True, exist_ok=True)
    (folder / "tests" / "one" / "test_it.py").write_text(TEST)
    for name, share in (("small.json", 0.1), ("large.json", 600)):
        shares = {"tests/one": share, COLLECTION: 600, "total": 600}
        (folder / name).write_text(json.dumps({"unit": unit(), "seconds": shares}))
    plugins = ["-p", "tests.cpu", "-p", "no:hypothesispytest", "-p", "no:randomly", "-p", "no:cacheprovider"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *plugins, "-n", workers, "tests"],
        cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT), "TIECONV_CPU": table}, capture_output=True, text=True,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("table", "workers", "code"),
    [("small.json", "0", 1), ("large.json", "0", 0), pytest.param("small.json", "2", 1, marks=pytest.mark.slow)],
)
def test_a_folder_over_its_share_fails(tmp_path: Path, table: str, workers: str, code: int) -> None:
    """Children count and sleep does not; a run that passed fails by the table alone."""
    done = measured(tmp_path, table, workers)
    assert done.returncode == code, done.stdout
    assert "1 passed" in done.stdout
    assert ("its share is 0 s" in done.stdout) == bool(code)
    (line,) = [line for line in done.stdout.splitlines() if line.endswith("s  tests/one")]
    assert 0.3 <= float(line.split()[0]) < 60


@pytest.mark.sampled(3)
@pytest.mark.parametrize("number", range(9))
def test_the_first_the_last_and_those_between(number: int, request: pytest.FixtureRequest) -> None:
    """Three of nine are not slow, in whatever order they are run."""
    assert (number in (0, 4, 8)) == (request.node.get_closest_marker("slow") is None)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("word", ["first", pytest.param("slow", marks=pytest.mark.slow), "last"])
def test_a_case_that_is_slow_by_itself_does_not_count(word: str, request: pytest.FixtureRequest) -> None:
    """One case is the first one."""
    assert (word == "first") == (request.node.get_closest_marker("slow") is None)


def test_a_lazy_module_is_imported_when_it_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What is replaced in it is put back. A package that the run says is absent is missing at once."""
    (tmp_path / "imported_late.py").write_text("first, second = 1, 2\n")
    monkeypatch.syspath_prepend(tmp_path)
    module = lazy.Lazy("imported_late")
    assert getattr(module, "__test__", None) is None and "imported_late" not in sys.modules
    assert (module.first, module.second) == (1, 2)
    made = sys.modules["imported_late"]
    with monkeypatch.context() as patch, mock.patch.object(module, "second", 4):
        patch.setattr(module, "first", 3)
        assert vars(made)["first"] == 3 and vars(made)["second"] == 4
    assert vars(made)["first"] == 1 and vars(made)["second"] == 2
    del sys.modules["imported_late"]
    monkeypatch.setenv("TIECONV_WITHOUT", "torch")
    for name in ("torch", "load_file"):
        with pytest.raises(ModuleNotFoundError, match="torch"):
            getattr(lazy, name)
    with pytest.raises(AttributeError):
        lazy.no_such_module  # noqa: B018
