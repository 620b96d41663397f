"""Killed at any moment: source intact, OUT absent, old or whole; the next run succeeds and tidies up."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.run import ok

from . import models
from .kills import HOWS, ROOT, Case, Stage, Zygote, calls_of, kill_at_random, kill_before

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
    value = json.loads((root / "config.json").read_text())
    (root / "config.json").write_text(json.dumps({**value, "tie_word_embeddings": False}))


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
