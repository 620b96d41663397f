"""`fleet check` of an object store: the findings of the local models, by ranges, and changed models alone again."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest

from tests.objects.conftest import Run
from tests.objects.stub import Fault, Store

MODELS = Path(__file__).parents[2] / "fixtures" / "models"
NAMES = ("llama-tied", "llama-duplicated", "llama-headless-config", "t5")


@pytest.fixture(autouse=True)
def bucket(store: Store) -> None:
    """Four models, two of which have a finding."""
    for name in NAMES:
        store.add(f"models/{name}", MODELS / name)


def findings(directory: Path) -> dict[str, list[str]]:
    """The rules of each model's findings, by the last word of its address. A later line replaces an earlier one."""
    found = {}
    for line in (directory / "check.jsonl").read_text().splitlines():
        (model,) = json.loads(line)["report"]["models"]
        found[model["source"].rpartition("/")[2]] = sorted(finding["rule"] for finding in model["findings"])
    return found


def test_the_findings_are_the_local_ones(store: Store, tieconv: Run, tmp_path: Path) -> None:
    """From one listing of all, and at most four requests and 100 kB a model."""
    for name in NAMES:
        shutil.copytree(MODELS / name, tmp_path / "local" / name)
    assert tieconv("fleet", "check", tmp_path / "local", "-o", tmp_path / "here", "-q").returncode == 0
    result = tieconv("fleet", "check", "s3://bucket/models/", "-o", tmp_path / "there", "-q")
    assert result.returncode == 0, result.stderr
    assert findings(tmp_path / "there") == findings(tmp_path / "here")
    assert findings(tmp_path / "there")["llama-duplicated"] == ["TIE002"]
    requests, sent = Counter[str](), Counter[str]()
    for request in store.requests:
        for name in NAMES:
            if f"models/{name}/" in request.key:
                requests[name] += 1
                sent[name] += request.sent
    assert set(requests) == set(NAMES)
    assert max(requests.values()) <= 4 and max(sent.values()) <= 100_000


def test_a_changed_model_is_read_again(store: Store, tieconv: Run, tmp_path: Path) -> None:
    """The second run reads no object; after one config changed, it reads those of that model alone."""
    words = ("fleet", "check", "s3://bucket/models/", "-o", tmp_path / "runs", "-q")
    assert tieconv(*words).returncode == 0
    store.requests.clear()
    assert tieconv(*words).returncode == 0
    assert not [request for request in store.requests if "models/" in request.key and "." in request.key]
    config = json.loads(store.objects["models/llama-tied/config.json"])
    store.objects["models/llama-tied/config.json"] = json.dumps(config | {"tie_word_embeddings": False}).encode()
    store.requests.clear()
    assert tieconv(*words).returncode == 0
    read = {request.key.split("/")[1] for request in store.requests if "models/" in request.key and "." in request.key}
    assert read == {"llama-tied"}
    assert findings(tmp_path / "runs")["llama-tied"] != []
    report = tieconv("fleet", "report", tmp_path / "runs", "--json", "--no-config")
    assert json.loads(report.stdout)["models"] == len(NAMES)


def test_one_broken_model_does_not_end_the_run(store: Store, tieconv: Run, tmp_path: Path) -> None:
    """The others are finished; the next run tries the broken one again."""
    store.faults["models/t5/config.json"] = Fault("status", value="403")
    words = ("fleet", "check", "s3://bucket/models/", "-o", tmp_path / "runs", "-q")
    assert tieconv(*words).returncode == 2
    report = json.loads(tieconv("fleet", "report", tmp_path / "runs", "--json", "--no-config").stdout)
    assert (report["models"], report["unread"]) == (len(NAMES), 1)
    del store.faults["models/t5/config.json"]
    assert tieconv(*words).returncode == 0
    report = json.loads(tieconv("fleet", "report", tmp_path / "runs", "--json", "--no-config").stdout)
    assert report["unread"] == 0
