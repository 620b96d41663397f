"""A model in an object store as the source of every command that writes, with a local output."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.children import answer, sound
from tests.cli.stored import snapshot
from tests.objects.conftest import MODELS, Run
from tests.objects.stub import LIST, Fault, Store
from tests.refusals import failure_of
from tieconv import UnreadableError, plan_retie
from tieconv.errors import StalePlanError


@pytest.fixture(autouse=True)
def _temporary_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A directory for copies that a test can look into."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("llama-duplicated", "retie"),
        ("llama-tied", "untie"),
        ("llama-tied", "bias zero"),
        ("llama-headless-config", "set-tie true"),
        ("llama-duplicated", "dedup"),
        ("llama-tied", "convert --to torch"),
        ("llama-tied-sharded", "reindex"),
    ],
)
def test_a_result_is_that_of_the_disk(store: Store, tieconv: Run, tmp_path: Path, name: str, line: str) -> None:
    """The same files, byte for byte, and no copy is left behind."""
    store.add("m", MODELS / name)
    for source, out in ((MODELS / name, "local"), ("s3://bucket/m", "remote")):
        sound(tieconv(*line.split(), source, "-o", out))
    assert snapshot(tmp_path / "remote") == snapshot(tmp_path / "local")
    assert os.listdir(tmp_path / "temporary") == []


def test_a_plan_copies_nothing(store: Store, tieconv: Run) -> None:
    """It reads the bytes of the proof."""
    store.add("m", MODELS / "llama-duplicated")
    result = tieconv("retie", "s3://bucket/m")
    assert result.returncode == 0 and "equal to model.embed_tokens.weight" in result.stdout
    assert sum(request.key == LIST for request in store.requests) == 1


def test_nothing_is_written_in_place(store: Store, tieconv: Run) -> None:
    """An object store has no rename, and the command says so before any request."""
    result = tieconv("retie", "s3://bucket/m", "--in-place")
    assert result.returncode == 2 and store.requests == []
    assert "--in-place needs a local model; write with -o OUT, then copy OUT to the object store" in result.stderr


def test_no_output_is_on_the_hub(store: Store, tieconv: Run, tmp_path: Path) -> None:
    """No local directory gets the name of an address."""
    result = tieconv("retie", MODELS / "llama-duplicated", "-o", "hf://org/out")
    assert result.returncode == 2 and "is not a local path" in result.stderr
    assert not (tmp_path / "hf:").exists()


def test_a_model_that_changes_after_the_plan(store: Store, tmp_path: Path) -> None:
    """Is not written."""
    store.add("m", MODELS / "llama-duplicated")
    planned = plan_retie("s3://bucket/m")
    store.objects["m/config.json"] += b" "
    with pytest.raises(StalePlanError):
        planned.execute(tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "fault",
    [Fault("status", value="412", after=1), Fault("truncated", 1, "1000", after=1)],
    ids=["replaced", "truncated"],
)
def test_a_fault_while_a_file_is_copied(store: Store, tieconv: Run, tmp_path: Path, fault: Fault) -> None:
    """A replaced file ends the command without an output, and a truncated one is continued."""
    store.add("m", MODELS / "llama-duplicated")
    store.faults["m/model.safetensors"] = fault
    result = tieconv("retie", "s3://bucket/m", "-o", "out")
    assert (tmp_path / "out").exists() is (fault.kind == "truncated")
    assert result.returncode == (0 if fault.kind == "truncated" else 2), result.stderr
    assert os.listdir(tmp_path / "temporary") == []


def test_a_full_disk(store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Is noticed before the copy."""
    from tieconv.sources import temporary

    store.add("m", MODELS / "llama-duplicated")
    monkeypatch.setattr(temporary.shutil, "disk_usage", lambda _: SimpleNamespace(free=100))
    error = failure_of(plan_retie, UnreadableError, "s3://bucket/m", fetch=True)
    assert error.code == "objects.copy" and "TMPDIR" in error.command_hint


def test_a_graph_is_only_inspected(store: Store, tieconv: Run) -> None:
    """As on the Hub."""
    graph = next((MODELS.parent).rglob("*.onnx"), None)
    if graph is None:
        pytest.skip("no graph among the fixtures")
    store.objects["m/model.onnx"] = graph.read_bytes()
    assert tieconv("inspect", "s3://bucket/m").returncode == 0
    result = tieconv("untie", "s3://bucket/m", "-o", "out")
    assert result.returncode != 0 and "in an object store tieconv can only inspect graphs" in result.stderr


def test_an_analysis_is_that_of_the_disk(store: Store, tieconv: Run) -> None:
    """It reads a copy of the model."""
    store.add("m", MODELS / "llama-untied")
    sources = (MODELS / "llama-untied", "s3://bucket/m")
    first, second = (answer(tieconv("analyze", "--json", source)) for source in sources)
    for document in (first, second):
        document.pop("source", None)
        document.get("model", {}).pop("source", None)
    assert first == second
