"""docs/design.md shows the way of a command through the modules, in order; each is held to a run of the command."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.walk import PACKAGE
from tests.objects.conftest import variables
from tests.objects.writable_stub import start_writable

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "design.md"
SPINE = ("cli/write.py", "api/plans.py", "plans/verbs/retie.py", "planned.py", "execute/carry_out.py")


def written(command: str) -> tuple[list[str], list[str]]:
    """The steps of the way of ``command`` in the page, and the calls that climb."""
    block = re.search(rf"^```text\n\$ tieconv {command}\b[^\n]*\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert block is not None, f"docs/design.md has no way of {command}"
    lines = [line.split("  ")[0] for line in block[1].splitlines() if line and not line.startswith(" ")]
    climbs = [line.removeprefix("^ ") for line in lines if line.startswith("^")]
    return [line for line in lines if not line.startswith("^")], climbs


def walked(*arguments: str | Path) -> dict[str, object]:
    """The way of a command in a process of its own."""
    words = [sys.executable, "-m", "tests.docs.walk", *map(str, arguments)]
    walk: dict[str, object] = json.loads(subprocess.run(words, cwd=ROOT, capture_output=True, check=True).stdout)
    return walk


def hold(command: str, walk: dict[str, object]) -> None:
    """The page shows this way, module by module."""
    steps, climbs = written(command)
    assert walk["steps"] == steps, "the way is now:\n" + "\n".join(walk["steps"])  # type: ignore[arg-type]
    assert sorted(walk["climbs"]) == sorted(climbs)  # type: ignore[call-overload]


def test_the_way_of_retie(models: Path, tmp_path: Path) -> None:
    """The modules that `tieconv retie` enters; five of them, in this order, tell how it works."""
    walk = walked("retie", models / "llama-duplicated", "-o", tmp_path / "out")
    assert walk["code"] == 0
    hold("retie", walk)
    steps, _ = written("retie")
    assert [step for step in steps if step in SPINE] == list(SPINE)
    assert all(f"`{module}`" in PAGE.read_text() for module in SPINE)


def test_the_way_of_check(models: Path) -> None:
    """The modules that `tieconv check` enters."""
    walk = walked("check", models / "llama-duplicated")
    assert walk["code"] == 1
    hold("check", walk)


def test_the_way_of_fleet_check(models: Path, tmp_path: Path) -> None:
    """The modules that `tieconv fleet check` enters for one model after the other."""
    shutil.copytree(models / "llama-duplicated", tmp_path / "models" / "m")
    walk = walked("fleet", "check", tmp_path / "models", "-o", tmp_path / "runs")
    assert walk["code"] == 0
    hold("fleet check", walk)


def test_the_way_of_an_object_store(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The modules that `tieconv retie` enters from a prefix of a bucket to another."""
    pytest.importorskip("boto3")
    store, _, stop = start_writable()
    for name, value in variables(store, tmp_path).items():
        monkeypatch.setenv(name, value)
    store.add("m", models / "llama-duplicated")
    walk = walked("retie", "s3://bucket/m", "-o", "s3://bucket/out")
    stop()
    assert walk["code"] == 0
    hold("retie s3", walk)


@pytest.mark.slow
def test_the_way_of_parity(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The modules that `tieconv parity` enters."""
    pytest.importorskip("onnxruntime")
    pytest.importorskip("torch")
    from tests.onnx.exported import build, cache_directory

    made = build("llama", "float32", cache_directory(tmp_path_factory.getbasetemp()))
    walk = walked("parity", "--provider", "cpu", made.graph, made.model)
    assert walk["code"] == 0
    hold("parity", walk)


def test_an_analysis_catches_no_refusal() -> None:
    """What a planner refuses is handed to an analysis as a value: none catches `RefusedError` or cuts a message."""
    for path in (PACKAGE / "analysis").rglob("*.py"):
        tree = ast.parse(path.read_text())
        caught = [node.type for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler)]
        assert not [name for name in caught if name is not None and "RefusedError" in ast.unparse(name)], path
        assert ".message.removeprefix" not in path.read_text(), path
        assert "suppress(RefusedError" not in path.read_text(), path
