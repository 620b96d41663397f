"""Nothing of a checkpoint runs, whatever its files are called and wherever the program is started."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.children import sound
from tests.patience import HANGS

# What the program imports, what it might import, what Python imports at its start, and what a config may name.
NAMES = (
    "modeling_x", "configuration_x", "tokenization_x", "json", "torch", "numpy", "safetensors", "transformers",
    "click", "typing",
    "re", "os", "stat", "struct", "string", "random", "pathlib", "dataclasses", "contextlib", "functools",
    "importlib", "codecs",
    "encodings", "inspect", "runpy", "site", "sitecustomize", "usercustomize", "ml_dtypes", "tieconv", "__future__",
    "__main__",
)  # fmt: skip
PROGRAM = Path(sysconfig.get_path("scripts")) / "tieconv"


@pytest.fixture
def trap(tmp_path: Path, models: Path) -> Path:
    """A model that holds a module of every name, each of which leaves a mark when it is run."""
    home = tmp_path / "model"
    shutil.copytree(models / "llama-duplicated", home)
    mark = tmp_path / "fired"
    for name in NAMES:
        (home / f"{name}.py").write_text(f"open({str(mark)!r}, 'a').write({name!r} + ' ')\n")
        (home / f"{name}.pth").write_text(f"import {name}\n")
    (home / "chat_template.jinja").write_text("{{ ''.__class__.__mro__[1].__subclasses__() }}")
    config = json.loads((home / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "configuration_x.C", "AutoModelForCausalLM": "modeling_x.M"}
    (home / "config.json").write_text(json.dumps(config))
    return home


def fired(trap: Path) -> str:
    mark = trap.parent / "fired"
    return mark.read_text() if mark.exists() else ""


def start(trap: Path, program: list[str]) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(
        program, cwd=trap, env=environment, capture_output=True, text=True, timeout=HANGS, check=False
    )


COMMANDS = [
    ["inspect", "--depth", "full"],
    ["inspect", "--json"],
    ["retie", "-o", "../out"],
    ["untie", "--bias", "zero", "-o", "../out"],
]


@pytest.mark.skipif(not PROGRAM.exists(), reason="tieconv is not installed beside this Python")
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_the_program(trap: Path, command: list[str]) -> None:
    sound(start(trap, [str(PROGRAM), *command]))
    assert fired(trap) == ""


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_the_module_with_a_safe_path(trap: Path, command: list[str]) -> None:
    """`python -P -m tieconv`: without -P Python itself imports from the current directory before tieconv starts."""
    sound(start(trap, [sys.executable, "-P", "-m", "tieconv", *command]))
    assert fired(trap) == ""


def test_the_module_without_a_safe_path(trap: Path) -> None:
    """`python -m tieconv` cannot keep Python itself from importing there; tieconv's own imports it can."""
    likely = {"json", "torch", "numpy", "safetensors", "transformers", "click", "ml_dtypes", "inspect", "modeling_x"}
    for name in set(NAMES) - likely:
        (trap / f"{name}.py").unlink()
    sound(start(trap, [sys.executable, "-m", "tieconv", "inspect", "--depth", "full"]))
    assert fired(trap) == ""


def test_the_traps_fire(trap: Path) -> None:
    """The marks would prove nothing if the modules could not run."""
    start(trap, [sys.executable, "-c", "import modeling_x, json"])
    assert fired(trap) == "modeling_x json "


def test_reading_imports_nothing_that_runs_code(models: Path) -> None:
    """What could run code of a checkpoint is not even loaded to read one."""
    dangerous = {"torch", "transformers", "safetensors", "onnx", "pickle", "runpy", "ctypes"}
    model = str(models / "llama-duplicated")
    code = f"import sys, tieconv; tieconv.inspect({model!r}, depth='header'); print(*{dangerous} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
