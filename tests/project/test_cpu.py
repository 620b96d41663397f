"""The recorder of processor time: what it counts, and that a folder over its share fails the run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cpu import COLLECTION, folder_of, unit

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
