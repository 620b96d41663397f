"""What a hub, a proxy or a network can do wrong, also to hashes: one sentence, or the right answer."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.children import sound
from tests.hub.conftest import TOKEN, Run, refused
from tests.hub.models import same_head, sharded
from tests.hub.stub import Fault, Hub

SHARD = "model-00005-of-00009.safetensors"
# A busy machine may need some seconds for what no fault delays: five times this silence.
IMPATIENT = {"stall": {"silence": 1}}


@pytest.fixture
def model(hub: Hub, tmp_path: Path) -> str:
    hub.add("org/m", sharded(tmp_path / "m"))
    return "hf://org/m"


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("kind", "value", "says"),
    [
        ("ignore-range", "", "sent the whole file instead of the requested range"),
        ("other-range", "", "another range than tieconv requested"),
        ("other-size", "", "contradicts itself"),
        ("other-commit", "", "sent commit ffff"),
        ("status", "404", "HTTP 404"),
        ("status", "403", "may not read this model"),
        ("status", "500", "HTTP 500 (5 attempts)"),
        ("status", "503", "HTTP 503 (5 attempts)"),
        ("status", "429", "no more requests for now (5 attempts)"),
        ("retry-after", "3600", "no more requests for now"),
        ("hang-up", "", "connection to the Hub failed (5 attempts)"),
        ("truncate", "", "connection to the Hub failed"),
        ("stall", "3", "did not answer in time (5 attempts)"),
    ],
)
def test_fault_that_stays(kind: str, value: str, says: str, model: str, hub: Hub, hasty: Run) -> None:
    """Each ends in one sentence that names the file."""
    hub.faults[SHARD] = Fault(kind, value=value)
    error, _ = refused(hasty("inspect", model, HF_TOKEN=TOKEN, **IMPATIENT.get(kind, {})))
    assert says in error and SHARD in error


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("kind", "value"),
    [("status", "429"), ("status", "503"), ("status", "500"), ("truncate", ""), ("stall", "4"), ("hang-up", "")],
)  # fmt: skip
def test_fault_that_passes(kind: str, value: str, model: str, hub: Hub, hasty: Run) -> None:
    """What passes is met with patience: the answer is the one of a sound server."""
    sound = hasty("inspect", model, "--depth", "full")
    hub.faults[SHARD] = Fault(kind, 2, value)
    # A busy machine may need a second for an answer that no fault delays.
    result = hasty("inspect", model, "--depth", "full", **({"silence": 2} if kind == "stall" else {}))
    assert (result.returncode, result.stdout) == (0, sound.stdout), result.stderr
    assert hub.faults[SHARD].times == 0


def test_asked_to_wait(model: str, hub: Hub, hasty: Run) -> None:
    """The next request comes no sooner than `Retry-After` says, and then the answer is that of a sound server."""
    sound = hasty("inspect", model)
    hub.requests.clear()
    hub.faults[SHARD] = Fault("retry-after", 1, "1")
    assert hasty("inspect", model).stdout == sound.stdout
    first, second = (one for one in hub.requests if SHARD in one.path and one.server == "storage")
    assert second.at - first.at >= 1


def test_pauses_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who does not say how long is asked again after 0.3, 0.6, 1.2 and 2.4 seconds and a random quarter at most."""
    from tieconv.errors import UnreadableError
    from tieconv.sources.hub import client as hub_client

    waited: list[float] = []
    monkeypatch.setattr("time.sleep", waited.append)
    for attempt in range(1, hub_client.ATTEMPTS):
        hub_client.again(ConnectionError(), attempt, "m")
    assert all(least <= pause <= least + 0.25 for least, pause in zip((0.3, 0.6, 1.2, 2.4), waited, strict=True))
    with pytest.raises(UnreadableError, match="5 attempts"):
        hub_client.again(ConnectionError(), hub_client.ATTEMPTS, "m")
    assert len(waited) == 4


def test_answer_that_is_too_long(model: str, hub: Hub, tieconv: Run) -> None:
    """A document that brings more bytes than it has is not believed; of a range only what was asked for is taken."""
    sound = tieconv("inspect", model)
    hub.faults[SHARD] = Fault("too-long")
    assert tieconv("inspect", model).stdout == sound.stdout
    hub.faults["config.json"] = Fault("too-long")
    assert "the server sent more than" in refused(tieconv("inspect", model))[0]


def test_ignored_range_is_not_read(model: str, hub: Hub, tieconv: Run) -> None:
    """A whole file in place of a part is left where it is."""
    hub.faults[SHARD] = Fault("ignore-range")
    refused(tieconv("inspect", model))
    assert len([one for one in hub.requests if SHARD in one.path and one.server == "storage"]) == 1


def test_busy_api(model: str, hub: Hub, hasty: Run) -> None:
    """The listing is asked for again where the server is busy."""
    hub.faults["api:org/m"] = Fault("status", 2, "503")
    assert hasty("inspect", model).returncode == 0
    hub.faults["api:org/m"] = Fault("status", value="503")
    assert "HTTP 503" in refused(hasty("inspect", model))[0]


def test_size_of_the_listing(model: str, hub: Hub, tieconv: Run) -> None:
    """A listing that gives another size than the file has is not believed."""
    hub.lies[SHARD] = 9_000_000
    assert "contradicts itself" in refused(tieconv("inspect", model))[0]
    hub.lies = {"config.json": 9}
    assert "config.json" in refused(tieconv("inspect", model))[0]


def test_missing(hub: Hub, tieconv: Run, tmp_path: Path) -> None:
    """No such repository: the name is to be checked. One without files is there."""
    error, hint = refused(tieconv("inspect", "hf://org/none"))
    assert "not on the Hub" in error and "check the name" in hint
    (tmp_path / "empty").mkdir()
    hub.add("org/empty", tmp_path / "empty")
    assert "no such file" not in refused(tieconv("inspect", "hf://org/empty"))[0]


@pytest.mark.parametrize("token", ["", "hf_other"])
def test_gated(token: str, hub: Hub, tieconv: Run, models: Path) -> None:
    """A gated model says how to get access, with a login that has none and without any."""
    hub.add("org/m", models / "llama-tied", gated=True)
    error, hint = refused(tieconv("inspect", "hf://org/m", **({"HF_TOKEN": token} if token else {})))
    assert "gated" in error and "request access" in hint
    assert not token or token not in error + hint


def test_no_revision(model: str, tieconv: Run) -> None:
    """A revision that is not there."""
    assert "no such revision" in refused(tieconv("inspect", f"{model}@v9"))[0]


def test_no_server(hasty: Run) -> None:
    """Nobody listens: the hint offers the cache."""
    error, hint = refused(hasty("inspect", "hf://org/m", HF_ENDPOINT="http://127.0.0.1:9"))
    assert "connection" in error and "HF_HUB_OFFLINE" in hint


@pytest.mark.parametrize("name", ["../evil", "/etc/passwd", "a//b", "a/../b", "a\\b"])
def test_listing_that_leads_elsewhere(name: str, hub: Hub, tieconv: Run, models: Path) -> None:
    """A listing with a path that leaves the repository is no listing."""
    repo = hub.add("org/m", models / "llama-tied")
    found = repo.files()
    repo.files = lambda: {**found, name: found["config.json"]}  # type: ignore[method-assign]
    assert "not a path inside a repository" in refused(tieconv("inspect", "hf://org/m"))[0]


@pytest.mark.parametrize("commit", ["", "main", "A" * 40, "../" * 13 + "x"])
def test_listing_without_a_commit(commit: str, hub: Hub, tieconv: Run, models: Path) -> None:
    """What has no commit hash names none: it becomes part of addresses, and of paths in the cache."""
    hub.add("org/m", models / "llama-tied").commit = commit
    assert "has no commit hash" in refused(tieconv("inspect", "hf://org/m"))[0]


def test_malformed_weights(hub: Hub, tieconv: Run, tmp_path: Path) -> None:
    """A header is held to the same rules as a local one."""
    sharded(tmp_path / "m")
    shard = tmp_path / "m" / SHARD
    shard.write_bytes(shard.read_bytes()[:-5])
    hub.add("org/m", tmp_path / "m")
    near, far = tieconv("inspect", tmp_path / "m"), tieconv("inspect", "hf://org/m")
    assert refused(near)[0].endswith(refused(far)[0].removeprefix("error: "))


DEEP = "[" * 10_000 + "]" * 10_000
ANSWERS = {
    "null": "null", "string": '"text"', "number": "7", "list": "[]", "object": "{}", "list of nulls": "[null]",
    "deep": DEEP, "deep object": '{"a":' * 10_000 + "1" + "}" * 10_000, "no JSON": "<html>", "empty": "",
}  # fmt: skip
SHA = "0" * 40
FILE = '{"sha": "%s", "id": "org/m", "siblings": [%s]}'
LISTINGS = {
    "siblings object": f'{{"sha": "{SHA}", "id": "org/m", "siblings": {{}}}}',
    "siblings string": f'{{"sha": "{SHA}", "id": "org/m", "siblings": "abc"}}',
    "siblings of nulls": FILE % (SHA, "null"),
    "siblings of lists": FILE % (SHA, "[]"),
    "file without a name": FILE % (SHA, "{}"),
    "name is a list": FILE % (SHA, '{"rfilename": [], "size": 1, "blobId": "x"}'),
    "size is text": FILE % (SHA, '{"rfilename": "a", "size": "1", "blobId": "x"}'),
    "lfs is text": FILE % (SHA, '{"rfilename": "a", "size": 1, "lfs": "x"}'),
    "lfs is empty": FILE % (SHA, '{"rfilename": "a", "size": 1, "lfs": {}}'),
    "lfs without a hash": FILE % (SHA, '{"rfilename": "a", "size": 1, "lfs": {"size": 1, "pointerSize": 1}}'),
    "tags deep": f'{{"sha": "{SHA}", "id": "org/m", "tags": {DEEP}}}',
    "date is a list": f'{{"sha": "{SHA}", "id": "org/m", "lastModified": []}}',
    "card is text": f'{{"sha": "{SHA}", "id": "org/m", "cardData": "x", "siblings": []}}',
}


ASKED = {
    "api:org/m": ("inspect", "hf://org/m"),
    "api:models": ("check", "hf://org/*"),
    "tree:org/m": ("untie", "hf://org/m", "-o", "out"),
}
"""The files of a repository, the models of an owner, and the files that huggingface_hub lists as it fetches."""


@pytest.mark.sampled(20)
@pytest.mark.parametrize(
    ("asked", "answer"),
    [("api:org/m", answer) for answer in (*ANSWERS, *LISTINGS)]
    + [("api:models", name) for name in ANSWERS if name not in ("list", "empty", "no JSON", "number")]
    + [("tree:org/m", name) for name in ("null", "string", "object", "list of nulls", "deep", "no JSON")],
)
def test_listing(asked: str, answer: str, hub: Hub, tieconv: Run, models: Path) -> None:
    """A list that is malformed is told as that."""
    hub.add("org/m", models / "llama-tied")
    hub.answers[asked] = (ANSWERS | LISTINGS)[answer]
    error, hint = refused(tieconv(*ASKED[asked]))
    assert "unexpected" not in error and "bug in tieconv" not in hint
    assert "hf://org/m" in error or asked == "api:models"


@pytest.mark.parametrize("answer", ["null", "string", "list of nulls", "deep"])
def test_error(answer: str, hub: Hub, hasty: Run, models: Path) -> None:
    """What a server says of an error is not read, so that its form does not matter."""
    hub.add("org/m", models / "llama-tied")
    hub.errors = ANSWERS[answer]
    for words in (("inspect", "hf://org/none"), ("untie", "hf://org/none", "-o", "out")):
        assert "is not on the Hub" in refused(hasty(*words))[0]


def test_many(hub: Hub, tieconv: Run, models: Path, tmp_path: Path) -> None:
    """A model with such a listing is a row, and hides no other."""
    hub.add("org/m", models / "llama-tied")
    hub.add("org/n", Path(shutil.copytree(models / "llama-tied", tmp_path / "n")))
    hub.answers["api:org/n"] = "null"
    result = tieconv("check", "hf://org/m", "hf://org/n", "--depth", "full")
    assert result.returncode == 2 and "hf://org/m: ok" in result.stdout
    assert "the response of the Hub is malformed" in result.stdout + result.stderr
    assert "unexpected" not in result.stdout + result.stderr


WEIGHTS = "model-00002-of-00002.safetensors"


@pytest.fixture
def hashed_model(hub: Hub, tmp_path: Path) -> Path:
    """A model whose head differs from its embedding, in two shards."""
    path = sharded(tmp_path / "m", shards=2, tied=True)
    hub.add("org/m", path)
    return path


@pytest.fixture
def impostor(hashed_model: Path, tmp_path: Path) -> Path:
    """A file of the size of the second shard, in which the head is a copy of the embedding."""
    path = sharded(tmp_path / "other", shards=2, tied=True, head=same_head()) / WEIGHTS
    assert path.stat().st_size == (hashed_model / WEIGHTS).stat().st_size
    return path


def blobs(tmp_path: Path) -> dict[str, bytes]:
    """Every blob of the cache, of one repository or shared."""
    found = (tmp_path / "hf-home" / "hub").rglob("blobs/**/*")
    return {path.name: path.read_bytes() for path in found if path.is_file()}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("words", [("inspect", "--depth", "full"), ("diff", "hf://org/m"), ("retie", "-o", "out")])
def test_etag_of_another_file(
    words: tuple[str, ...], hashed_model: Path, impostor: Path, hub: Hub, tieconv: Run
) -> None:
    """A server that offers another file than it listed is not believed, whatever the size."""
    hub.swapped[WEIGHTS] = impostor
    hub.etags[WEIGHTS] = hub.sha256(impostor)
    error, hint = refused(tieconv(*words, "hf://org/m"))
    offered, listed = hub.sha256(impostor), hub.sha256(hashed_model / WEIGHTS)
    assert f"offers a file with the hash {offered}, but the listing has {listed}" in error
    assert WEIGHTS in error and "HF_ENDPOINT" in hint
    assert not (hashed_model.parent / "out").exists()


def test_etag_of_another_document(hashed_model: Path, hub: Hub, tieconv: Run) -> None:
    """The same for a file that is kept in git: its etag is the hash of its blob."""
    hub.etags["config.json"] = "0" * 40
    error, _ = refused(tieconv("inspect", "hf://org/m"))
    assert "config.json: the server offers a file with the hash 0000" in error


def test_etag_when_fetched(hashed_model: Path, hub: Hub, tieconv: Run, tmp_path: Path) -> None:
    """A file that only the fetch asks for: nothing of it enters the cache."""
    (hashed_model / "notes.data").write_bytes(b"one")
    hub.etags["notes.data"] = "e" * 64
    error, _ = refused(tieconv("untie", "hf://org/m", "-o", "out"))
    assert "notes.data" in error and "the listing has" in error
    assert "e" * 64 not in blobs(tmp_path) and not (tmp_path / "out").exists()


def test_documents_are_hashed(hashed_model: Path, hub: Hub, tieconv: Run, tmp_path: Path) -> None:
    """What arrives whole is hashed, although its etag is the right one."""
    (tmp_path / "config.json").write_bytes((hashed_model / "config.json").read_bytes().replace(b"true", b"True"))
    hub.swapped["config.json"] = tmp_path / "config.json"
    error, _ = refused(tieconv("inspect", "hf://org/m"))
    assert "config.json: the server sent bytes that do not match the hash of the listing" in error


def test_small_weights_are_hashed(hub: Hub, tieconv: Run, models: Path, tmp_path: Path) -> None:
    """So are weights that one answer brings whole."""
    data = bytearray((models / "llama-untied" / "model.safetensors").read_bytes())
    assert len(data) <= 65536
    data[-1] ^= 1
    (tmp_path / "swapped").write_bytes(data)
    hub.add("org/m", models / "llama-untied")
    hub.swapped["model.safetensors"] = tmp_path / "swapped"
    assert "do not match the hash of the listing" in refused(tieconv("inspect", "hf://org/m"))[0]


@pytest.mark.parametrize("etag", ["", '"the-etag-of-a-mirror-that-makes-its-own-00"'])
def test_server_without_etags(etag: str, hashed_model: Path, hub: Hub, tieconv: Run) -> None:
    """Older hubs and mirrors send none, or their own: there is nothing to compare, and documents are hashed."""
    hub.etags["config.json"] = etag.strip('"')
    assert tieconv("inspect", "hf://org/m").returncode == 0
    hub.etags[WEIGHTS] = ""
    assert tieconv("inspect", "hf://org/m").returncode == 0


@pytest.mark.sampled(1)
@pytest.mark.parametrize("words", [("retie",), ("untie",), ("dedup",)], ids=str)
def test_wrong_bytes_do_not_enter_the_cache(
    words: tuple[str, ...], hashed_model: Path, impostor: Path, hub: Hub, tieconv: Run, tmp_path: Path
) -> None:
    """Other bytes under the right etag are not kept, so that no later command, of whomever, takes them for the file."""
    hub.swapped[WEIGHTS] = impostor
    error, _ = refused(tieconv(*words, "hf://org/m", "-o", "out"))
    assert f"bytes that do not match the hash {hub.sha256(hashed_model / WEIGHTS)}" in error
    assert hub.sha256(hashed_model / WEIGHTS) not in blobs(tmp_path)
    assert impostor.read_bytes() not in blobs(tmp_path).values()
    assert not (tmp_path / "out").exists()
    hub.swapped.clear()
    assert tieconv(*words, "hf://org/m", "-o", "out", "--dry-run").returncode in (0, 2)


def test_swapped_files_of_one_listing(hub: Hub, tieconv: Run, tmp_path: Path) -> None:
    """Two files of the listing that are served for each other: their sizes and hashes are all known, and wrong."""
    path = sharded(tmp_path / "m", shards=2, tied=True)
    (path / "a.data").write_bytes(b"one")
    (path / "b.data").write_bytes(b"two")
    hub.add("org/m", path)
    hub.swapped = {"a.data": path / "b.data", "b.data": path / "a.data"}
    assert "bytes that do not match the hash" in refused(tieconv("untie", "hf://org/m", "-o", "out"))[0]


DOWNLOAD = "from huggingface_hub import snapshot_download; print(snapshot_download('org/m'))"


@pytest.fixture
def snapshot(hub: Hub, python: Run, hashed_model: Path) -> Path:
    """The model in the cache, put there by huggingface_hub."""
    return Path(python(DOWNLOAD).stdout.strip())


@pytest.mark.sampled(1)
@pytest.mark.parametrize("offline", ["0", "1"])
@pytest.mark.parametrize("words", [("untie", "-o", "out"), ("convert", "--to", "torch", "-o", "out"), ("analyze",)])
def test_damaged_blob(words: tuple[str, ...], offline: str, snapshot: Path, hashed_model: Path, tieconv: Run) -> None:
    """A verb that reads the cache hashes it first, offline by the names of the blobs, and says how to mend it."""
    blob = (snapshot / WEIGHTS).resolve()
    data = bytearray(blob.read_bytes())
    data[-1] ^= 1
    blob.write_bytes(data)
    result = tieconv(*words, "hf://org/m", HF_HUB_OFFLINE=offline)
    error, hint = refused(result)
    assert f"{WEIGHTS} of hf://org/m is damaged in the local cache" in error
    assert f"hf download org/m {WEIGHTS} --force-download" in hint
    assert not (hashed_model.parent / "out").exists() and blob.read_bytes() == data


def test_damaged_blob_is_mended(snapshot: Path, hashed_model: Path, tieconv: Run, interpreter: Run) -> None:
    """The hint's command mends it."""
    blob = (snapshot / WEIGHTS).resolve()
    blob.write_bytes(blob.read_bytes()[:-1] + b"!")
    hint = refused(tieconv("untie", "hf://org/m", "-o", "out"))[1]
    words = hint.split(": hf ")[1].split()
    program = "import sys; from huggingface_hub.cli.hf import main; main()"
    sound(interpreter("-c", program, *words))
    assert tieconv("untie", "hf://org/m", "-o", "out").returncode == 0


def test_blob_of_another_commit(snapshot: Path, hashed_model: Path, impostor: Path, tieconv: Run, hub: Hub) -> None:
    """A file of the cache whose blob has another name than the listing's hash is not read as that file."""
    other = snapshot.parent.parent / "blobs" / hub.sha256(impostor)
    shutil.copyfile(impostor, other)
    (snapshot / WEIGHTS).unlink()
    (snapshot / WEIGHTS).symlink_to(os.path.relpath(other, snapshot))
    result = tieconv("inspect", "hf://org/m", "--depth", "full")
    assert "lm_head.weight             distinct" in result.stdout, result.stdout + result.stderr
    assert hub.of(WEIGHTS)
    assert "is damaged in the local cache" in refused(tieconv("untie", "hf://org/m", "-o", "out"))[0]


def test_offline_without_blobs(snapshot: Path, tieconv: Run) -> None:
    """A cache without links names no hash: online the listing has it, offline nothing proves the bytes."""
    for path in snapshot.iterdir():
        data = path.read_bytes()
        path.unlink()
        path.write_bytes(data)
    error, hint = refused(tieconv("untie", "hf://org/m", "-o", "out", HF_HUB_OFFLINE="1"))
    assert "has no hash for" in error and "HF_HUB_OFFLINE" in hint
    assert tieconv("untie", "hf://org/m", "-o", "out").returncode == 0


def test_listing_without_hashes(hashed_model: Path, hub: Hub, tieconv: Run) -> None:
    """A listing that has no hash for a file is no listing."""
    from tests.hub import stub

    found = stub.Hub.blob
    try:
        stub.Hub.blob = lambda self, path: None  # type: ignore[assignment,return-value,method-assign]
        assert "has no hash for config.json" in refused(tieconv("inspect", "hf://org/m"))[0]
    finally:
        stub.Hub.blob = found  # type: ignore[method-assign]
