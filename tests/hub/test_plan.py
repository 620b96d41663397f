"""Plans for models on the Hub: headers and what a proof needs, nothing on disk until something is written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.hub.conftest import Run
from tests.hub.models import ROWS, WIDTH, same_head, sharded
from tests.hub.stub import Hub

SIZE = ROWS * WIDTH * 2
VERBS = [
    ("untie", "--keep-flag"), ("retie",), ("set-tie", "false"), ("dedup",), ("bias", "zero"), ("bias", "resize"),
    ("bias", "unify"), ("convert", "--to", "torch"), ("reindex",), ("reindex", "--add-format"),
]  # fmt: skip
CASES = [
    *((words, model) for words in VERBS for model in ("llama-duplicated", "bert-mlm")),
    (("untie",), "llama-tied-sharded"), (("reindex",), "llama-tied-sharded"),
    (("reindex", "--add-format"), "llama-tied-sharded"), (("untie",), "gpt2-unprefixed"),
]  # fmt: skip


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("words", "model"), CASES, ids=str)
def test_plan_is_that_of_the_local_model(
    words: tuple[str, ...], model: str, hub: Hub, tieconv: Run, models: Path, tmp_path: Path
) -> None:
    """Without -o a plan, or a refusal, is what it is for the directory, and the cache stays empty."""
    hub.add("org/m", models / model)
    far, near = tieconv(*words, "hf://org/m", "--json"), tieconv(*words, models / model, "--json")
    assert far.returncode == near.returncode, far.stderr + near.stderr
    if near.returncode == 0:
        told, known = json.loads(far.stdout), json.loads(near.stdout)
        assert (told.pop("source"), told) == ("hf://org/m", {k: v for k, v in known.items() if k != "source"})
        assert "fetched" in far.stderr
    else:
        assert far.stderr == near.stderr.replace(str(models / model), "hf://org/m")
    assert not (tmp_path / "hf-home" / "hub").exists()


@pytest.mark.parametrize("shards", [1, 3])
def test_a_format_is_added_on_the_way(shards: int, hub: Hub, tieconv: Run, tmp_path: Path) -> None:
    """Files without metadata on the Hub name a format in OUT, in one file and in shards; nothing else is new there."""
    hub.add("org/m", sharded(tmp_path / "m", shards=shards, head=same_head()))
    source = tmp_path / "m"
    if shards == 1:
        (source / "model.safetensors.index.json").unlink()
        next(source.glob("*.safetensors")).rename(source / "model.safetensors")
    result = tieconv("reindex", "hf://org/m", "--add-format", "-o", "out")
    assert result.returncode == 0, result.stderr
    for path in source.iterdir():
        written = (tmp_path / "out" / path.name).read_bytes()
        if path.suffix != ".safetensors":
            assert written == path.read_bytes()
            continue
        head = int.from_bytes(written[:8], "little")
        assert json.loads(written[8 : 8 + head])["__metadata__"] == {"format": "pt"}
        old = path.read_bytes()
        assert written[8 + head :] == old[8 + int.from_bytes(old[:8], "little") :]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "words", [("set-tie", "true"), ("bias", "zero"), ("convert", "--to", "torch"), ("untie",)], ids=" ".join
)
def test_cost_of_a_plan(words: tuple[str, ...], hub: Hub, tieconv: Run, tmp_path: Path) -> None:
    """A plan that has nothing to prove reads the headers: of a tied model no tensor at all."""
    retied = tieconv("retie", sharded(tmp_path / "m", shards=3), "--from", "embed", "--force", "-o", "tied")
    assert retied.returncode == 0, retied.stderr
    hub.add("org/m", tmp_path / "tied")
    result = tieconv(*words, "hf://org/m")
    assert result.returncode == 0, result.stderr
    assert hub.sent < 3 * 65536 + 16384


def test_a_proof_streams_the_pair(hub: Hub, tieconv: Run, tmp_path: Path) -> None:
    """To plan a re-tie of two copies both are compared, each byte once, and no other tensor is read."""
    hub.add("org/m", sharded(tmp_path / "m", head=same_head()))
    result = tieconv("retie", "hf://org/m", "--dry-run", "-o", "out")
    assert result.returncode == 0, result.stderr
    assert "drop" in result.stdout and not (tmp_path / "out").exists()
    assert 2 * SIZE - 2 * 65536 < hub.sent < 2 * SIZE + 9 * 65536 + 7 * 8192 + 65536
    (tmp_path / "out").mkdir()
    assert "exists" in tieconv("untie", "hf://org/m", "--dry-run", "-o", "out").stderr


def test_plan_carried_out_later(hub: Hub, tieconv: Run, python: Run, models: Path, tmp_path: Path) -> None:
    """`execute` fetches and writes what the command writes; a branch that moved on meanwhile stops it."""
    hub.add("org/m", models / "llama-duplicated")
    program = """
import os, sys, tieconv
plan = tieconv.plan_retie("hf://org/m")
assert not os.path.exists(os.environ["HF_HOME"] + "/hub")
print(plan.execute("far").output)
"""
    result = python(program)
    assert result.returncode == 0, result.stderr
    assert tieconv("retie", models / "llama-duplicated", "-o", "near").returncode == 0
    for path in (tmp_path / "near").iterdir():
        assert path.read_bytes() == (tmp_path / "far" / path.name).read_bytes()
    moved = python(
        "import tieconv, dataclasses\n"
        "plan = tieconv.plan_retie('hf://org/m')\n"
        "old = dataclasses.replace(plan.plan.checkpoint, revision='f' * 40)\n"
        "plan = dataclasses.replace(plan, plan=dataclasses.replace(plan.plan, checkpoint=old))\n"
        "try: plan.execute('again')\n"
        "except tieconv.TieconvError as error: print(error.code)"
    )
    assert moved.stdout.strip() == "plan.stale", moved.stderr
    assert not (tmp_path / "again").exists()
