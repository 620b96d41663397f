"""What a hub, a proxy or a network can do wrong: one sentence and a hint, or the right answer after a retry."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.hub.conftest import TOKEN, Run, refused
from tests.hub.models import sharded
from tests.hub.stub import Fault, Hub

SHARD = "model-00005-of-00009.safetensors"
IMPATIENT = {"stall": {"silence": 0.2}}


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
        ("stall", "0.5", "did not answer in time (5 attempts)"),
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
    [("status", "429"), ("status", "503"), ("status", "500"), ("truncate", ""), ("stall", "0.5"), ("hang-up", "")],
)  # fmt: skip
def test_fault_that_passes(kind: str, value: str, model: str, hub: Hub, hasty: Run) -> None:
    """What passes is met with patience: the answer is the one of a sound server."""
    sound = hasty("inspect", model, "--depth", "full")
    hub.faults[SHARD] = Fault(kind, 2, value)
    result = hasty("inspect", model, "--depth", "full", **IMPATIENT.get(kind, {}))
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


def test_missing(hub: Hub, tieconv: Run) -> None:
    """No such repository: the name is to be checked."""
    error, hint = refused(tieconv("inspect", "hf://org/none"))
    assert "not on the Hub" in error and "check the name" in hint


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


@pytest.mark.sampled(8)
@pytest.mark.parametrize("answer", [*ANSWERS, *LISTINGS])
def test_listing(answer: str, hub: Hub, tieconv: Run, models: Path) -> None:
    """The listing of a repository."""
    hub.add("org/m", models / "llama-tied")
    hub.answers["api:org/m"] = (ANSWERS | LISTINGS)[answer]
    error, hint = refused(tieconv("inspect", "hf://org/m"))
    assert "hf://org/m" in error and "unexpected" not in error and "bug in tieconv" not in hint


@pytest.mark.parametrize("answer", [name for name in ANSWERS if name not in ("list", "empty", "no JSON", "number")])
def test_models_of_an_owner(answer: str, hub: Hub, tieconv: Run) -> None:
    """The list of models."""
    hub.answers["api:models"] = ANSWERS[answer]
    error, hint = refused(tieconv("check", "hf://org/*"))
    assert "unexpected" not in error and "bug in tieconv" not in hint


@pytest.mark.parametrize("answer", ["null", "string", "object", "list of nulls", "deep", "no JSON"])
def test_tree(answer: str, hub: Hub, tieconv: Run, models: Path) -> None:
    """The list of files that huggingface_hub asks for as it fetches."""
    hub.add("org/m", models / "llama-tied")
    hub.answers["tree:org/m"] = ANSWERS[answer]
    error, hint = refused(tieconv("untie", "hf://org/m", "-o", "out"))
    assert "hf://org/m" in error and "unexpected" not in error and "bug in tieconv" not in hint


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
