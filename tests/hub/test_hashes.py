"""What a server sends, and what the cache holds, is held against the hashes of the listing."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.hub.conftest import Run, refused
from tests.hub.models import same_head, sharded
from tests.hub.stub import Hub

WEIGHTS = "model-00002-of-00002.safetensors"


@pytest.fixture
def model(hub: Hub, tmp_path: Path) -> Path:
    """A model whose head differs from its embedding, in two shards."""
    path = sharded(tmp_path / "m", shards=2, tied=True)
    hub.add("org/m", path)
    return path


@pytest.fixture
def impostor(model: Path, tmp_path: Path) -> Path:
    """A file of the size of the second shard, in which the head is a copy of the embedding."""
    path = sharded(tmp_path / "other", shards=2, tied=True, head=same_head()) / WEIGHTS
    assert path.stat().st_size == (model / WEIGHTS).stat().st_size
    return path


def blobs(tmp_path: Path) -> dict[str, bytes]:
    """Every blob of the cache, of one repository or shared."""
    found = (tmp_path / "hf-home" / "hub").rglob("blobs/**/*")
    return {path.name: path.read_bytes() for path in found if path.is_file()}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("words", [("inspect", "--depth", "full"), ("diff", "hf://org/m"), ("retie", "-o", "out")])
def test_etag_of_another_file(words: tuple[str, ...], model: Path, impostor: Path, hub: Hub, tieconv: Run) -> None:
    """A server that offers another file than it listed is not believed, whatever the size."""
    hub.swapped[WEIGHTS] = impostor
    hub.etags[WEIGHTS] = hub.sha256(impostor)
    error, hint = refused(tieconv(*words, "hf://org/m"))
    assert (
        f"offers a file with the hash {hub.sha256(impostor)}, but the listing has {hub.sha256(model / WEIGHTS)}"
        in error
    )
    assert WEIGHTS in error and "HF_ENDPOINT" in hint
    assert not (model.parent / "out").exists()


def test_etag_of_another_document(model: Path, hub: Hub, tieconv: Run) -> None:
    """The same for a file that is kept in git: its etag is the hash of its blob."""
    hub.etags["config.json"] = "0" * 40
    error, _ = refused(tieconv("inspect", "hf://org/m"))
    assert "config.json: the server offers a file with the hash 0000" in error


def test_etag_when_fetched(model: Path, hub: Hub, tieconv: Run, tmp_path: Path) -> None:
    """A file that only the fetch asks for: nothing of it enters the cache."""
    (model / "notes.data").write_bytes(b"one")
    hub.etags["notes.data"] = "e" * 64
    error, _ = refused(tieconv("untie", "hf://org/m", "-o", "out"))
    assert "notes.data" in error and "the listing has" in error
    assert "e" * 64 not in blobs(tmp_path) and not (tmp_path / "out").exists()


def test_documents_are_hashed(model: Path, hub: Hub, tieconv: Run, tmp_path: Path) -> None:
    """What arrives whole is hashed, although its etag is the right one."""
    (tmp_path / "config.json").write_bytes((model / "config.json").read_bytes().replace(b"true", b"True"))
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
def test_server_without_etags(etag: str, model: Path, hub: Hub, tieconv: Run) -> None:
    """Older hubs and mirrors send none, or their own: there is nothing to compare, and documents are hashed."""
    hub.etags["config.json"] = etag.strip('"')
    assert tieconv("inspect", "hf://org/m").returncode == 0
    hub.etags[WEIGHTS] = ""
    assert tieconv("inspect", "hf://org/m").returncode == 0


@pytest.mark.sampled(1)
@pytest.mark.parametrize("words", [("retie",), ("untie",), ("dedup",)], ids=str)
def test_wrong_bytes_do_not_enter_the_cache(
    words: tuple[str, ...], model: Path, impostor: Path, hub: Hub, tieconv: Run, tmp_path: Path
) -> None:
    """Other bytes under the right etag are not kept, so that no later command, of whomever, takes them for the file."""
    hub.swapped[WEIGHTS] = impostor
    error, _ = refused(tieconv(*words, "hf://org/m", "-o", "out"))
    assert f"bytes that do not match the hash {hub.sha256(model / WEIGHTS)}" in error
    assert hub.sha256(model / WEIGHTS) not in blobs(tmp_path)
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
def snapshot(hub: Hub, python: Run, model: Path) -> Path:
    """The model in the cache, put there by huggingface_hub."""
    return Path(python(DOWNLOAD).stdout.strip())


@pytest.mark.sampled(1)
@pytest.mark.parametrize("offline", ["0", "1"])
@pytest.mark.parametrize("words", [("untie", "-o", "out"), ("convert", "--to", "torch", "-o", "out"), ("analyze",)])
def test_damaged_blob(words: tuple[str, ...], offline: str, snapshot: Path, model: Path, tieconv: Run) -> None:
    """A verb that reads the cache hashes it first, offline by the names of the blobs, and says how to mend it."""
    blob = (snapshot / WEIGHTS).resolve()
    data = bytearray(blob.read_bytes())
    data[-1] ^= 1
    blob.write_bytes(data)
    result = tieconv(*words, "hf://org/m", HF_HUB_OFFLINE=offline)
    error, hint = refused(result)
    assert f"{WEIGHTS} of hf://org/m is damaged in the local cache" in error
    assert f"hf download org/m {WEIGHTS} --force-download" in hint
    assert not (model.parent / "out").exists() and blob.read_bytes() == data


def test_damaged_blob_is_mended(snapshot: Path, model: Path, tieconv: Run, interpreter: Run) -> None:
    """The hint's command mends it."""
    blob = (snapshot / WEIGHTS).resolve()
    blob.write_bytes(blob.read_bytes()[:-1] + b"!")
    hint = refused(tieconv("untie", "hf://org/m", "-o", "out"))[1]
    words = hint.split(": hf ")[1].split()
    program = "import sys; from huggingface_hub.cli.hf import main; main()"
    mended = interpreter("-c", program, *words)
    assert mended.returncode == 0, mended.stderr
    assert tieconv("untie", "hf://org/m", "-o", "out").returncode == 0


def test_blob_of_another_commit(snapshot: Path, model: Path, impostor: Path, tieconv: Run, hub: Hub) -> None:
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


def test_listing_without_hashes(model: Path, hub: Hub, tieconv: Run) -> None:
    """A listing that has no hash for a file is no listing."""
    from tests.hub import stub

    found = stub.Hub.blob
    try:
        stub.Hub.blob = lambda self, path: None  # type: ignore[assignment,return-value,method-assign]
        assert "has no hash for config.json" in refused(tieconv("inspect", "hf://org/m"))[0]
    finally:
        stub.Hub.blob = found  # type: ignore[method-assign]
