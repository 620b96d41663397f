"""`tieconv push`: exactly the changed files, a pull request unless told otherwise, and nothing unasked."""

from __future__ import annotations

import base64
import json
import shutil
from pathlib import Path

import pytest

from tests.hub.conftest import TOKEN, Run
from tests.hub.models import sharded
from tests.hub.stub import Hub


def operations(hub: Hub) -> dict[str, str]:
    """Each file of the one commit, and what becomes of it."""
    [commit] = hub.commits
    kinds = {"file": "regular", "lfsFile": "lfs", "deletedFile": "delete"}
    return {line["value"]["path"]: kinds[line["key"]] for line in commit["lines"] if line["key"] != "header"}


@pytest.fixture
def changed(hub: Hub, tieconv: Run, models: Path, tmp_path: Path) -> Path:
    """A model of the Hub, untied into a directory."""
    hub.add("org/m", models / "llama-tied")
    result = tieconv("untie", "hf://org/m", "-o", tmp_path / "out")
    assert result.returncode == 0, result.stderr
    hub.requests.clear()
    return tmp_path / "out"


def test_changed_files_alone(changed: Path, hub: Hub, tieconv: Run) -> None:
    """A pull request holds the files that differ, and the plan as its description."""
    result = tieconv("push", changed, "hf://org/m", "--create-pr", "--yes", HF_TOKEN=TOKEN)
    assert result.returncode == 0, result.stderr
    assert operations(hub) == {"config.json": "regular", "model.safetensors": "lfs"}
    [commit] = hub.commits
    assert commit["query"]["create_pr"] == ["1"]
    header = commit["lines"][0]["value"]
    assert header["parentCommit"] == hub.repos["org/m"].commit
    assert "lm_head.weight" in header["description"] and "model.safetensors" in header["description"]
    assert header["description"].splitlines()[0] in result.stdout
    assert f"{hub.url}/org/m/discussions/7" in result.stderr
    assert hub.uploads == {hub.sha256(changed / "model.safetensors"): (changed / "model.safetensors").read_bytes()}
    config = next(line for line in commit["lines"] if line["key"] == "file")["value"]["content"]
    assert base64.b64decode(config) == (changed / "config.json").read_bytes()
    assert TOKEN not in result.stdout + result.stderr


def test_asks_first(changed: Path, hub: Hub, tieconv: Run) -> None:
    """Without a terminal to ask on and without --yes the plan is printed and nothing is sent."""
    result = tieconv("push", changed, "hf://org/m", stdin="y\n", HF_TOKEN=TOKEN)
    assert result.returncode == 2 and "--yes" in result.stderr and "model.safetensors" in result.stdout
    dry = tieconv("push", changed, "hf://org/m", "--dry-run", "--json")
    assert dry.returncode == 0 and json.loads(dry.stdout)["executed"] is False
    assert hub.commits == [] and hub.uploads == {}
    assert {one.method for one in hub.requests} == {"GET"}


def test_to_main_only_when_told(changed: Path, hub: Hub, tieconv: Run) -> None:
    """--no-pr is what it takes to change main, and the title is the user's."""
    result = tieconv("push", changed, "hf://org/m", "--no-pr", "--yes", "-m", "untie", "--json", HF_TOKEN=TOKEN)
    assert result.returncode == 0, result.stderr
    [commit] = hub.commits
    assert "create_pr" not in commit["query"] and commit["revision"] == "main"
    assert commit["lines"][0]["value"]["summary"] == "untie"
    assert json.loads(result.stdout)["url"].endswith("c" * 40)
    branch = tieconv("push", changed, "hf://org/m@dev", "--yes")
    assert branch.returncode == 2 and "--no-pr" in branch.stderr


def test_nothing_differs(hub: Hub, tieconv: Run, models: Path, tmp_path: Path) -> None:
    """A model that is there already is not pushed."""
    hub.add("org/m", models / "llama-tied")
    shutil.copytree(models / "llama-tied", tmp_path / "same")
    result = tieconv("push", tmp_path / "same", "hf://org/m", "--yes")
    assert result.returncode == 0 and "nothing differs" in result.stderr
    assert hub.commits == []


def test_shard_that_is_gone(hub: Hub, tieconv: Run, tmp_path: Path) -> None:
    """A shard that the model no longer has is deleted; a file that the directory merely lacks stays."""
    near = sharded(tmp_path / "m", shards=3)
    far = Path(shutil.copytree(near, tmp_path / "far"))
    (far / "notes.txt").write_text("kept")
    hub.add("org/m", far)
    index = json.loads((near / "model.safetensors.index.json").read_text())
    gone = "model-00002-of-00003.safetensors"
    (near / gone).unlink()
    index["weight_map"] = {name: shard for name, shard in index["weight_map"].items() if shard != gone}
    index["metadata"] = {}
    (near / "model.safetensors.index.json").write_text(json.dumps(index))
    result = tieconv("push", near, "hf://org/m", "--yes", HF_TOKEN=TOKEN)
    assert result.returncode == 0, result.stderr
    assert operations(hub) == {"model.safetensors.index.json": "regular", gone: "delete"}


def test_refused_by_the_hub(hub: Hub, tieconv: Run, models: Path, tmp_path: Path) -> None:
    """A login that may not write is told so."""
    repo = hub.add("org/m", models / "llama-tied")
    shutil.copytree(models / "llama-untied", tmp_path / "new")
    hub.read_only = True
    result = tieconv("push", tmp_path / "new", "hf://org/m", "--yes", HF_TOKEN="hf_reader")
    assert result.returncode == 2 and "may not write" in result.stderr
    assert "hf_reader" not in result.stderr and "secret words" not in result.stderr
    assert repo.commit in result.stdout
