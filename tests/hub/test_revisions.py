"""`analyze --revisions` of a model on the Hub: the two matrices of each revision, once, and nothing again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.hub.conftest import Run
from tests.hub.models import EMBEDDING, ROWS, WIDTH, noise, sharded, write_shard
from tests.hub.stub import Hub

TABLE = ROWS * WIDTH * 2
HEADERS = 9 * 65536
STEPS = ("step1-tokens1B", "step20-tokens20B", "step300")


@pytest.fixture
def run_of_steps(hub: Hub, tmp_path: Path) -> Path:
    """Three branches with other heads, and the embedding of the first."""
    for number, step in enumerate(STEPS):
        hub.add_branch("org/m", step, sharded(tmp_path / step, head=noise(TABLE, 2 + number)))
    return tmp_path


def asked(hub: Hub) -> tuple[int, int]:
    """Requests and bytes of files since the last call."""
    files = [request for request in hub.requests if "/api/" not in request.path]
    hub.requests.clear()
    return len(files), sum(request.sent for request in files)


@pytest.mark.slow
def test_two_matrices_once(hub: Hub, tieconv: Run, run_of_steps: Path) -> None:
    """Headers, config and two matrices a revision; a finished run asks for no file; a changed branch is read again."""
    words = ("analyze", "hf://org/m", "--revisions", ",".join(reversed(STEPS)), "--resume", "run.jsonl", "--json")
    result = tieconv(*words)
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    assert [entry["name"] for entry in document["revisions"]] == list(STEPS)
    assert [entry["step"] for entry in document["revisions"]] == [1, 20, 300]
    requests, brought = asked(hub)
    assert 3 * 2 * TABLE < brought < 3 * (2 * TABLE + HEADERS + 16384)
    assert requests < 3 * (9 + 4 + 2 * 2 + 9)
    last = {measure["name"]: measure["value"] for measure in document["revisions"][-1]["measures"]}
    assert last["cosine E to first"] == pytest.approx(1, abs=1e-6) and last["cosine U to first"] < 0.99

    again = json.loads(tieconv(*words).stdout)
    assert asked(hub)[1] == 0
    assert all(entry["reused"] for entry in again["revisions"])
    assert [entry["measures"] for entry in again["revisions"]] == [entry["measures"] for entry in document["revisions"]]

    shutil.rmtree(run_of_steps / STEPS[2])
    hub.add_branch("org/m", STEPS[2], sharded(run_of_steps / STEPS[2], head=noise(TABLE, 99)))
    third = json.loads(tieconv(*words).stdout)
    assert [entry["reused"] for entry in third["revisions"]] == [True, True, False]
    assert (
        3 * 2 * TABLE < asked(hub)[1] < 3 * (2 * TABLE + HEADERS + 16384)
    )  # the first two are what it is compared with


@pytest.mark.slow
def test_nothing_stays_on_the_disk(tieconv: Run, run_of_steps: Path) -> None:
    """The copies of the tables are gone at the end, also after an error."""
    scratch = run_of_steps / "scratch"
    scratch.mkdir()
    for names in (",".join(STEPS), f"{STEPS[0]},{STEPS[1]},step999"):
        tieconv("analyze", "hf://org/m", "--revisions", names, TMPDIR=str(scratch))
        assert list(scratch.iterdir()) == []


@pytest.mark.slow
def test_a_revision_that_is_missing(tieconv: Run, run_of_steps: Path) -> None:
    """One sentence; what was measured before it is in the file."""
    names = f"{STEPS[0]},{STEPS[1]},step999"
    result = tieconv("analyze", "hf://org/m", "--revisions", names, "--resume", "run.jsonl")
    assert result.returncode == 2 and "step999" in result.stderr.splitlines()[0]
    assert len((run_of_steps / "run.jsonl").read_text().splitlines()) == 2


def test_a_tied_run(hub: Hub, tieconv: Run, tmp_path: Path) -> None:
    """A tied model has one table, of which half the bytes are fetched."""
    for number, step in enumerate(STEPS[:2]):
        path = tmp_path / step
        path.mkdir()
        (path / "config.json").write_text(json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}))
        layer = ((4096, 512), noise(4096 * 512 * 2, 7))
        write_shard(
            path / "model.safetensors",
            {EMBEDDING: ((ROWS, WIDTH), noise(TABLE, number)), "model.layers.0.mlp.up_proj.weight": layer},
        )
        hub.add_branch("org/t", step, path)
    result = tieconv("analyze", "hf://org/t", "--revisions", ",".join(STEPS[:2]), "--json")
    assert result.returncode == 0, result.stderr
    last = json.loads(result.stdout)["revisions"][1]
    assert last["tables"] == {"T": EMBEDDING}
    assert [measure["name"] for measure in last["measures"]] == [
        "cosine T to first",
        "cosine T to previous",
        "mean norm T",
    ]
    assert 2 * TABLE < asked(hub)[1] < 2 * (TABLE + 65536 + 16384)
