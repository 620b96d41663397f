"""Killed, or without power, at any moment: source intact, OUT absent, old or whole; the next run succeeds."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.run import ok
from tests.cli.stored import configure

from . import models, power
from .kills import HOWS, ROOT, Case, Stage, Zygote, calls_of, kill_at_random, kill_before, traced

FIXTURES = ROOT / "fixtures" / "models"


def tied(root: Path) -> None:
    shutil.copytree(FIXTURES / "llama-tied", root)


def untied(root: Path) -> None:
    shutil.copytree(FIXTURES / "llama-untied", root)


def duplicated(root: Path) -> None:
    shutil.copytree(FIXTURES / "llama-duplicated", root)


def shards(root: Path) -> None:
    """A redundant head in one of several shards."""
    ok("convert --to safetensors --max-shard-size 20KB", FIXTURES / "llama-duplicated", "-o", root)


def wrong_index(root: Path) -> None:
    shards(root)
    path = root / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["metadata"]["total_size"] += 1
    path.write_text(json.dumps(index))


def wrong_flag(root: Path) -> None:
    duplicated(root)
    configure(root, tie_word_embeddings=False)


VERBS = {
    "retie": shards,
    "untie": tied,
    "bias zero": untied,
    "set-tie true": wrong_flag,
    "dedup": duplicated,
    "convert --to torch": tied,
    "convert --to safetensors --max-shard-size 20KB": duplicated,
    "reindex": wrong_index,
    "check --no-config --fix": wrong_index,
}
CASES = [
    Case(verb, make, how)
    for verb, make in VERBS.items()
    for how in HOWS
    if how in ("-o", "--in-place") or "--fix" not in verb
]
FILES = [Case("retie", duplicated, how, "model.safetensors") for how in HOWS if how != "--hardlink"]
needs_strace = pytest.mark.skipif(not shutil.which("strace"), reason="strace is not installed")


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    """A process with tieconv loaded."""
    process = Zygote()
    yield process
    process.close()


def stage_of(case: Case, root: Path, zygote: Zygote) -> Stage:
    """The case, and for several remedies in place the model between them: each is a write of its own."""
    stage = Stage(case, root, zygote)
    if "--fix" in case.verb and case.how == "--in-place":
        stage.reset()
        ok("reindex --in-place", stage.out)
        stage.steps = [models.digest(stage.out)]
    return stage


def report(what: str, case: Case, found: Counter[str]) -> None:
    print(f"\n{what}, {case}: {dict(found)}")


@pytest.mark.sampled(6)
@pytest.mark.parametrize("case", CASES + FILES, ids=str)
def test_killed_at_random(case: Case, tmp_path: Path, zygote: Zygote) -> None:
    """A moment of each way to write; the slow test takes many."""
    assert kill_at_random(stage_of(case, tmp_path, zygote), 1).total() == 1


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES + FILES, ids=str)
def test_killed_at_many_moments(case: Case, tmp_path: Path, zygote: Zygote) -> None:
    """Moments over the whole run, for each way to write."""
    report("killed at random", case, kill_at_random(stage_of(case, tmp_path, zygote), 30))


@needs_strace
@pytest.mark.parametrize("case", [Case("retie", shards, "-o"), *(case for case in CASES[1:3])], ids=str)
def test_killed_before_the_decisive_calls(case: Case, tmp_path: Path, zygote: Zygote) -> None:
    """Before the rename and just after it."""
    stage = stage_of(case, tmp_path, zygote)
    calls = calls_of(stage)
    last = max(index for index, call in enumerate(calls) if call.name in ("renameat2", "rename"))
    after = [call for call in calls[last + 1 :] if call.name in ("fsync", "unlink", "unlinkat", "rmdir")]
    found = [kill_before(stage, call) for call in (calls[last], after[0], after[-1])]
    assert found == ["old", "whole", "whole"]


@needs_strace
@pytest.mark.slow
@pytest.mark.parametrize("case", CASES + FILES, ids=str)
def test_killed_before_every_call(case: Case, tmp_path: Path, zygote: Zygote) -> None:
    """Every call that touches the file system, one by one."""
    stage = stage_of(case, tmp_path, zygote)
    found = Counter(str(kill_before(stage, call)) for call in calls_of(stage))
    report("killed before each call", case, found)
    assert found["old"]
    assert found["whole"]


@pytest.fixture(scope="module")
def traced_zygote() -> Iterator[Zygote]:
    process = Zygote()
    yield process
    process.close()


def trace(stage: Stage) -> tuple[power.Disk, str]:
    """The disk before a run, and the calls that the run made."""
    log = stage.root / "power.log"
    with traced(stage, "-f", "-y", "-s", "4096", "-e", f"trace={power.TRACED}", "-o", str(log)):
        disk = power.Disk(stage.work)
        assert stage.zygote.end() == 0, stage.log.read_text()
    return disk, log.read_text()


def images(disk: power.Disk, out: Path, log: str) -> Iterator[tuple[power.Files, dict[power.File, tuple[int, int]]]]:
    """After each call: the files at OUT, and how much of each was written and synced."""
    for _ in disk.play(log):
        found = power.files(disk.at(out))
        yield found, {file: (file.version, file.synced) for file in found.values()}


def judge(stage: Stage) -> Counter[str]:
    disk, log = trace(stage)
    old = power.files(disk.at(stage.out))
    seen = list(images(disk, stage.out, log))
    final = power.files(disk.at(stage.out))
    assert {name.lstrip("/") or stage.out.name for name in final} == set(stage.whole or {})
    found = Counter(kind_of(files, versions, old, final) for files, versions in seen)
    steps = {tuple(files.items()) for files, versions in seen if kind_of(files, versions, old, final) == "step"}
    assert len(steps) <= ("--fix" in stage.case.verb and stage.case.how == "--in-place"), "old and new files are mixed"
    check_durable(disk, stage.out)
    return found


def kind_of(files: power.Files, states: dict[power.File, tuple[int, int]], old: power.Files, final: power.Files) -> str:
    """What an image is: a ``step`` is what one of several remedies has published."""
    if not files:
        return "absent"
    for name, file in files.items():
        assert states[file][0] == states[file][1], f"{name} has its name before its bytes are synced"
    if files == old and all(version == 0 for version, _ in states.values()):
        return "old"
    return "whole" if files == final else "step"


def check_durable(disk: power.Disk, out: Path) -> None:
    """Exit 0: every name of OUT is synced in its directory, whatever order the file system keeps."""
    parent = disk.at(out.parent)
    assert isinstance(parent, power.Directory)
    assert out.name in parent.durable
    waiting = [disk.at(out)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, power.Directory):
            assert set(node.entries) == node.durable
            waiting += node.entries.values()


@pytest.mark.sampled(8)
@needs_strace
@pytest.mark.parametrize("case", CASES + FILES, ids=str)
def test_every_image(case: Case, tmp_path: Path, traced_zygote: Zygote) -> None:
    """Every image that keeps the names so far and only synced bytes."""
    found = judge(Stage(case, tmp_path, traced_zygote))
    report("power cut after each call", case, found)
    assert found["whole"]
    assert found["old" if case.how in ("--in-place", "--overwrite") else "absent"]
