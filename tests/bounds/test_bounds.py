"""Any input of at most 100 MB takes at most 300 MiB, 10 s of CPU and 200 printed lines, or one sentence refuses it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.bounds.inputs import MAKERS, MAX
from tests.hostile.conftest import faults_of_text
from tests.patience import patient

TOO_LARGE = "larger than tieconv reads"
MEBIBYTES, SECONDS, LINES, LINE = 300, 10, 200, 9000
MAKE = """
import sys
from pathlib import Path
from tests.bounds.inputs import MAKERS
MAKERS[sys.argv[1]](Path(sys.argv[2]))
"""
MEASURE = """
import json, resource, subprocess, sys
done = subprocess.run(sys.argv[1:], capture_output=True, text=True)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
numbers = {"mebibytes": used.ru_maxrss // 1024, "seconds": used.ru_utime + used.ru_stime}
print(json.dumps({**numbers, "code": done.returncode, "stdout": done.stdout, "stderr": done.stderr}))
"""
COMMANDS = {
    "inspect": ["inspect"],
    "check": ["check"],
    "markdown": ["check", "--format", "markdown"],
    "github": ["check", "--format", "github"],
    "diff": ["diff"],
    "retie": ["retie"],
    "analyze": ["analyze"],
}
FURTHER = [
    "config-levels-read", "config-flags-read", "config-architectures", "safetensors-equal", "index-read", "gguf-keys",
    "torch-string", "onnx-equal-read", "peft-targets",
]  # fmt: skip
"""What is read, and printed by other commands than `inspect`."""
OFTEN = {
    "config-levels-read", "index-read", "peft-targets", "dcp-string", "safetensors-metadata-entries", "onnx-nodes",
    "gguf-keys", "torch-string", "tokenizer-special-texts", "generation-ids", "baseline-lists", "settings-lists",
}  # fmt: skip
"""What every run inspects: one input of each format. The slow tests inspect all."""
TOKENIZERS = ("tokenizer-", "generation-", "config-ids-")
"""What `analyze` reads beside the weights."""
SMALL_ENOUGH = ("tokenizer-merges-within", "tokenizer-merges-repeated", "tokenizer-special-texts", "tokenizer-numbers")
"""Without a vocabulary of any size, or malformed."""
CHECKED = ("baseline-", "settings-")
"""Files that the user gives to `check`."""


@dataclass(frozen=True)
class Run:
    """What one call took and printed."""

    mebibytes: int
    seconds: float
    code: int
    stdout: str
    stderr: str


def run(*arguments: object) -> Run:
    program = [sys.executable, "-P", "-c", MEASURE, sys.executable, "-P", "-m", "tieconv", *map(str, arguments)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=600, check=True)
    return Run(**json.loads(done.stdout))


def make(name: str, home: Path) -> Path:
    """The model, made in a process of its own: a child starts with the memory of its parent."""
    subprocess.run([sys.executable, "-c", MAKE, name, str(home)], check=True, cwd=Path(__file__).parents[2])
    assert sum(file.stat().st_blocks * 512 for file in home.iterdir()) < MAX * 1.1
    return home


def assert_bounded(took: Run) -> None:
    lines = [*took.stdout.splitlines(), *took.stderr.splitlines()]
    assert took.mebibytes <= MEBIBYTES
    assert took.seconds <= patient(SECONDS)
    assert len(lines) <= LINES
    assert max(map(len, lines), default=0) <= LINE
    assert faults_of_text(took.stderr) == []
    assert "unexpected" not in took.stderr
    if took.code == 2:
        assert (took.stderr.startswith("error: ") and "\nhint: " in took.stderr) or "could not be read" in took.stdout


def often(choice: Callable[[str], bool], besides: tuple[str, ...] = ()) -> list[object]:
    """The names of inputs that ``choice`` takes; those that are not in `OFTEN`, or start so, are slow tests."""
    quick = {name for name in OFTEN if not name.startswith(besides)}
    chosen = filter(choice, MAKERS)
    return [name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in chosen]


@pytest.mark.parametrize("name", often(lambda name: not name.startswith(CHECKED), besides=TOKENIZERS))
def test_inspect(name: str, tmp_path: Path) -> None:
    assert_bounded(run("inspect", make(name, tmp_path)))


OTHERS = [name for name in COMMANDS if name != "inspect"]


def calls() -> Iterator[object]:
    """Each name with each command; each command has one name that is not slow."""
    for index, name in enumerate(FURTHER):
        for number, command in enumerate(OTHERS):
            often = number == index and command != "diff"  # `diff` of many tensors takes ten seconds
            yield pytest.param(name, command, marks=[] if often else pytest.mark.slow)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("name", "command"), list(calls()))
def test_other_commands(name: str, command: str, tmp_path: Path) -> None:
    home = make(name, tmp_path)
    verb, *options = COMMANDS[command]
    models = [home, home] if verb == "diff" else [home]
    assert_bounded(run(verb, *models, *options))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["copy", "other values"])
def test_diff_of_as_many_tensors_as_are_compared(kind: str, tmp_path: Path) -> None:
    """Each tensor is read in both models; where all differ, the differences take memory too."""
    a, b = tmp_path / "a", tmp_path / "b"
    a.mkdir()
    make("safetensors-experts-read", a)
    if kind == "copy":
        shutil.copytree(a, b)
    else:
        b.mkdir()
        make("safetensors-experts-read", b)
    took = run("diff", a, b)
    assert_bounded(took)
    assert took.code == (0 if kind == "copy" else 1)


@pytest.mark.slow
def test_diff_of_torch_files(tmp_path: Path) -> None:
    """The records of a torch file are larger: its storages are kept."""
    took = run("diff", make("torch-compared-read", tmp_path), tmp_path)
    assert_bounded(took)
    assert took.code == 0


@pytest.mark.slow
def test_diff_refuses_more_tensors(tmp_path: Path) -> None:
    home = make("safetensors-equal", tmp_path)
    took = run("diff", home, home)
    assert_bounded(took)
    assert took.code == 2
    assert "has 500,000 tensors, and diff compares models of at most 250,000" in took.stderr
    assert "one by one" in took.stderr


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", often(lambda name: name.startswith(TOKENIZERS)))
def test_tokenizers(name: str, tmp_path: Path) -> None:
    """What is read is not said to be too large, and what is too large is said to be."""
    took = run("analyze", make(name, tmp_path), "--json")
    assert_bounded(took)
    assert took.code == 0
    if name.startswith("tokenizer-"):
        assert (TOO_LARGE in took.stdout) != (name.endswith("-read") or name in SMALL_ENOUGH)


@pytest.mark.parametrize("name", often(lambda name: name.startswith(CHECKED)))
def test_files_of_check(name: str, tmp_path: Path) -> None:
    home = make(name, tmp_path)
    option = "--baseline" if name.startswith("baseline-") else "--config"
    took = run("check", home, option, home / "beside" / "file")
    assert_bounded(took)
    assert (took.code == 2) != name.endswith("-read")


def test_every_format_is_inspected_often() -> None:
    assert {name.split("-")[0] for name in OFTEN} >= {name.split("-")[0] for name in MAKERS}
    assert set(MAKERS) >= OFTEN


def test_honest_inputs_are_read() -> None:
    """The bounds would prove nothing if everything large were refused."""
    assert len([name for name in MAKERS if name.endswith("-read")]) >= 6
