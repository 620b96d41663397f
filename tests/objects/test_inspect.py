"""A model, and each revision of a run, in an object store is the same as on the disk, for few requests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.children import sound
from tests.hub.models import ROWS, WIDTH, local, noise, same_head, sharded, states, verdict
from tests.objects.conftest import MODELS, SECRETS, Run
from tests.objects.stub import LIST, Store
from tests.refusals import failure_of
from tieconv import UnreadableError, analyze_revisions, check, diff, inspect
from tieconv.api.check import expand

NAMES = sorted(path.name for path in MODELS.iterdir() if path.is_dir())
SINGLE = [name for name in NAMES if "sharded" not in name]


def remote(source: str, **options: object) -> dict[str, object]:
    """What `inspect --json` says of a model in the store."""
    return dict(json.loads(str(inspect(source, **options))))  # type: ignore[arg-type]


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_the_evidence_is_that_of_the_disk(store: Store, name: str, scheme: str) -> None:
    """With every byte read, nothing of the report depends on where the model is."""
    store.add(f"models/{name}", MODELS / name)
    far, near = remote(f"{scheme}://bucket/models/{name}", depth="full"), local(MODELS / name, depth="full")
    assert verdict(far) == verdict(near)


@pytest.mark.slow
def test_300_models_have_the_findings_of_the_disk(store: Store, tmp_path: Path) -> None:
    """At most four requests and 100 kB each, and one listing of a thousand keys a page for all of them."""
    copies = [f"{number:03d}-{SINGLE[number % len(SINGLE)]}" for number in range(300)]
    for copy in copies:
        store.add(f"models/{copy}", MODELS / copy[4:])
    expanded = expand(["s3://bucket/models/"])
    assert expanded == tuple(f"s3://bucket/models/{copy}" for copy in copies)
    assert len(store.requests) == len(store.objects) // 1000 + 1
    store.requests.clear()
    report = check(expanded)
    expected = {name: _findings(check(MODELS / name)) for name in SINGLE}
    for model, copy in zip(report.models, copies, strict=True):
        assert [(entry.finding.rule, entry.finding.message) for entry in model.findings] == expected[copy[4:]]
        prefix = f"models/{copy}/"
        of_model = [one for one in store.requests if prefix in (one.key[: len(prefix)], *one.query.get("prefix", []))]
        assert len(of_model) <= 4, copy
        assert sum(request.sent for request in of_model) <= 100_000
    assert len(store.requests) <= 4 * 300


def _findings(report: object) -> list[tuple[str, str]]:
    [model] = report.models  # type: ignore[attr-defined]
    return [(entry.finding.rule, entry.finding.message) for entry in model.findings]


def test_samples_of_a_large_model(store: Store, tmp_path: Path) -> None:
    """One listing, the index, the config, a header of each shard and two samples; the shards are not read."""
    store.add("m", sharded(tmp_path / "m", 4, head=same_head(), tied=True))
    document = remote("s3://bucket/m")
    assert states(document)["lm_head.weight"][0] == "unread"
    assert len(store.requests) == 1 + 2 + 4 + 2
    assert store.sent < 4 * 65_536 + 30_000
    store.requests.clear()
    assert states(remote("s3://bucket/m", depth="full"))["lm_head.weight"][0] == "identical"


def test_every_request_is_signed_and_for_the_listed_etag(store: Store) -> None:
    """A listing is the only request without a condition. Signatures use the key of the environment."""
    store.add("m", MODELS / "t5")
    inspect("s3://bucket/m")
    assert store.requests[0].key == LIST
    for request in store.requests:
        assert "AKIAKEYID" in (request.authorization or "")
        assert request.key == LIST or request.if_match == store.etag(request.key)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_file_is_named(store: Store, name: str) -> None:
    """A file is listed with its directory, without the directories below."""
    store.add("m", MODELS / "t5")
    store.objects["m/deep/model.safetensors"] = b"no weights"
    if name.endswith("json"):
        failure_of(inspect, UnreadableError, f"s3://bucket/m/{name}")
        return
    document = inspect(f"s3://bucket/m/{name}")
    assert document.checkpoint.source == "s3://bucket/m/model.safetensors"
    assert [request.query.get("delimiter") for request in store.requests if request.key == LIST] == [["/"]]


def test_an_index_is_named(store: Store, tmp_path: Path) -> None:
    """An index means its directory."""
    store.add("m", MODELS / "llama-tied-sharded")
    assert len(inspect("s3://bucket/m/model.safetensors.index.json").checkpoint.files) == 3


def test_a_bucket_can_be_a_model(store: Store) -> None:
    """The files of a model may lie at the top of a bucket."""
    for path in (MODELS / "t5").iterdir():
        store.objects[path.name] = path.read_bytes()
    assert inspect("s3://bucket").checkpoint.files[0].name == "model.safetensors"


def test_objects_that_mark_directories_are_no_files(store: Store) -> None:
    """The consoles of the clouds write an empty object for each directory."""
    store.add("m", MODELS / "t5")
    store.objects |= {"m/": b"", "m/sub/": b"", "m/sub/notes.txt": b"notes"}
    assert set(inspect("s3://bucket/m/").checkpoint.companions) == {"generation_config.json", "sub/notes.txt"}


def test_the_command_counts_what_it_fetched(store: Store, tieconv: Run) -> None:
    """On stderr and in JSON; the revision is a hash of the listing."""
    store.add("m", MODELS / "llama-untied")
    result = sound(tieconv("inspect", "s3://bucket/m"))
    assert result.stderr == "fetched 58.5 kB in 3 requests\n"
    assert "listing" in result.stdout
    model = json.loads(tieconv("inspect", "--json", "s3://bucket/m").stdout)["model"]
    assert model["fetched"] == {"requests": 3, "bytes": store.sent_of_files} and len(model["revision"]) == 64
    for secret in SECRETS[:2]:
        assert secret not in result.stdout + result.stderr


def test_a_diff_with_the_disk(store: Store) -> None:
    """Both ways, and files beside the weights are compared by their bytes."""
    store.add("m", MODELS / "llama-untied")
    store.objects["m/config.json"] += b" "
    store.objects["m/notes.txt"] = b"notes"
    first = diff("s3://bucket/m", MODELS / "llama-untied")
    assert first.same_function
    assert [(entry.name, str(entry.contrast)) for entry in first.files] == [("notes.txt", "only_a")]
    store.add("n", MODELS / "llama-duplicated")
    assert not diff("s3://bucket/m", "gs://bucket/n").same_function


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
