"""`analyze --revisions` of a run in an object store: the two matrices of each revision, once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.hub.models import ROWS, WIDTH, noise, sharded
from tests.objects.stub import LIST, Store
from tieconv import analyze_revisions

TABLE = ROWS * WIDTH * 2


@pytest.fixture
def steps(store: Store, tmp_path: Path) -> tuple[str, ...]:
    """Two checkpoints of one run, with other heads."""
    for number in range(2):
        store.add(f"run/step{number}", sharded(tmp_path / f"step{number}", head=noise(TABLE, 2 + number)))
    return "step0", "step1"


def test_two_matrices_once(store: Store, steps: tuple[str, ...], tmp_path: Path) -> None:
    """The figures are those of the disk, for the bytes of headers and two matrices; then for none."""
    resume = tmp_path / "run.jsonl"
    remote = analyze_revisions("s3://bucket/run/", steps, resume=resume)
    brought = sum(request.sent for request in store.requests if request.key != LIST)
    assert 2 * 2 * TABLE < brought < 2 * (2 * TABLE + 9 * 65536 + 16384)
    local = analyze_revisions(tmp_path, steps)
    for far, near in zip(remote.revisions, local.revisions, strict=True):
        assert far.measures == near.measures and far.errors == near.errors

    store.requests.clear()
    assert all(revision.reused for revision in analyze_revisions("s3://bucket/run", steps, resume=resume).revisions)
    assert not [request for request in store.requests if request.key != LIST]

    config = json.loads(store.objects["run/step1/config.json"]) | {"note": 1}
    store.objects["run/step1/config.json"] = json.dumps(config).encode()
    again = analyze_revisions("s3://bucket/run", steps, resume=resume).revisions
    assert [revision.reused for revision in again] == [True, False]
