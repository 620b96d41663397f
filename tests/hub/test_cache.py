"""The local cache: read without network, never written into; only a sound cache is left by what is fetched."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.children import answer, sound
from tests.hub.conftest import TOKEN, Run, interrupt, refused
from tests.hub.models import sharded
from tests.hub.stub import Fault, Hub
from tests.lazy import load_file, save_file, torch
from tests.patience import HANGS

DOWNLOAD = "from huggingface_hub import snapshot_download; print(snapshot_download('org/m'))"


def contents(root: Path) -> dict[str, tuple[str, int]]:
    """Every file below, its hash and its time of change; links as what they say."""
    found = {}
    for path in sorted(root.rglob("*")):
        if path.is_symlink():
            found[str(path)] = (os.readlink(path), 0)
        elif path.is_file():
            found[str(path)] = (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
    return found


@pytest.fixture
def cached(hub: Hub, python: Run, models: Path, tmp_path: Path) -> Path:
    """A model in the cache, put there by huggingface_hub itself."""
    hub.add("org/m", models / "llama-duplicated")
    sound(python(DOWNLOAD))
    hub.requests.clear()
    return tmp_path / "hf-home" / "hub"


def test_offline(cached: Path, hub: Hub, tieconv: Run, models: Path) -> None:
    """In offline mode the snapshot is read, with every proof, and no request is made."""
    before = contents(cached)
    document = answer(tieconv("inspect", "hf://org/m", "--json", HF_HUB_OFFLINE="1"))
    assert document["model"]["revision"] == hub.repos["org/m"].commit
    assert document["ties"] == json.loads(tieconv("inspect", models / "llama-duplicated", "--json").stdout)["ties"]
    commit = tieconv("inspect", f"hf://org/m@{hub.repos['org/m'].commit}", HF_HUB_OFFLINE="1")
    assert commit.returncode == 0
    assert hub.requests == [] and contents(cached) == before


def test_offline_without_the_model(hub: Hub, tieconv: Run) -> None:
    """What the cache does not hold is not asked for."""
    for words in (("inspect", "hf://org/n"), ("inspect", "hf://org/n@v1"), ("untie", "hf://org/n", "-o", "out")):
        result = tieconv(*words, HF_HUB_OFFLINE="1")
        assert result.returncode == 2 and "hf download" in result.stderr
    assert hub.requests == []


def test_offline_with_a_part_of_the_model(hub: Hub, tieconv: Run, python: Run, tmp_path: Path) -> None:
    """A shard that was never fetched is to be fetched; the index is in order."""
    hub.add("org/m", sharded(tmp_path / "m", shards=2))
    for name in ("config.json", "model.safetensors.index.json", "model-00001-of-00002.safetensors"):
        sound(python(f"from huggingface_hub import hf_hub_download as get; get('org/m', '{name}')"))
    for words in (("inspect", "hf://org/m"), ("retie", "hf://org/m", "-o", "out")):
        result = tieconv(*words, HF_HUB_OFFLINE="1")
        assert result.returncode == 2 and "hf://org/m is not complete in the local cache" in result.stderr
        assert "hint: unset HF_HUB_OFFLINE, or fetch the rest first: hf download org/m" in result.stderr
        assert "reindex" not in result.stderr


def test_cached_files_are_not_fetched(cached: Path, hub: Hub, tieconv: Run) -> None:
    """Online the commit is asked for; files that the cache has are read there, and then proofs cost nothing."""
    result = tieconv("inspect", "hf://org/m", "--json")
    document = json.loads(result.stdout)
    assert document["model"]["fetched"] == {"requests": 1, "bytes": 0}
    assert "identical" in {member["state"] for tie in document["ties"] for member in tie["members"]}
    assert not [one for one in hub.requests if "/resolve/" in one.path]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "words",
    [("untie", "--keep-flag"), ("retie",), ("set-tie", "false"), ("dedup",), ("bias", "zero"),
     ("convert", "--to", "torch")],
)  # fmt: skip
def test_repair(words: tuple[str, ...], hub: Hub, tieconv: Run, models: Path, tmp_path: Path) -> None:
    """A writing command on a model of the Hub writes what the local command writes, from the ordinary cache."""
    hub.add("org/m", models / "llama-duplicated")
    near = tieconv(*words, models / "llama-duplicated", "-o", tmp_path / "near")
    far = tieconv(*words, "hf://org/m", "-o", tmp_path / "far")
    assert (near.returncode, far.returncode) == (0, 0), far.stderr + near.stderr
    names = sorted(path.name for path in (tmp_path / "near").iterdir())
    assert names == sorted(path.name for path in (tmp_path / "far").iterdir())
    for name in names:
        assert (tmp_path / "near" / name).read_bytes() == (tmp_path / "far" / name).read_bytes()
        assert not (tmp_path / "far" / name).is_symlink()
    snapshot = tmp_path / "hf-home" / "hub" / "models--org--m" / "snapshots" / hub.repos["org/m"].commit
    assert (snapshot / "model.safetensors").is_symlink()


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "words",
    [("inspect",), ("check", "--depth", "full"), ("diff", "hf://org/m"), ("analyze",),
     ("untie", "--keep-flag", "-o", "out"), ("retie", "-o", "out", "--hardlink"), ("set-tie", "false", "-o", "out"),
     ("dedup", "-o", "out"), ("bias", "zero", "-o", "out"), ("convert", "--to", "torch", "-o", "out"),
     ("untie", "--keep-flag", "--in-place")],
    ids=" ".join,
)  # fmt: skip
@pytest.mark.parametrize("offline", ["0", "1"])
def test_no_verb_writes_into_the_cache(
    words: tuple[str, ...], offline: str, cached: Path, hub: Hub, tieconv: Run
) -> None:
    """Blobs are shared between repositories: their bytes, times and links stay, and nothing is fetched again."""
    before = {name: found for name, found in contents(cached).items() if "/blobs/" in name or "/snapshots/" in name}
    assert len(before) >= 4
    links = {path: path.stat().st_nlink for path in cached.rglob("blobs/*")}
    result = tieconv(*words, "hf://org/m", HF_HUB_OFFLINE=offline)
    assert result.returncode == (2 if "--in-place" in words else 1 if "check" in words else 0), result.stderr
    assert {name: found for name, found in contents(cached).items() if name in before} == before
    assert {path: path.stat().st_nlink for path in links} == links
    assert not [one for one in hub.requests if one.server == "storage"]


def test_reindex(hub: Hub, tieconv: Run, tmp_path: Path) -> None:
    """An index that is missing on the Hub is rebuilt."""
    sharded(tmp_path / "m", shards=3)
    wanted = json.loads((tmp_path / "m" / "model.safetensors.index.json").read_text())["weight_map"]
    (tmp_path / "m" / "model.safetensors.index.json").unlink()
    hub.add("org/m", tmp_path / "m")
    sound(tieconv("reindex", "hf://org/m", "-o", tmp_path / "out"))
    assert json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())["weight_map"] == wanted


def test_refused_before_it_is_fetched(hub: Hub, tieconv: Run, tmp_path: Path) -> None:
    """Two formats side by side are refused before they are fetched; the one that is dropped never is."""
    import torch

    sharded(tmp_path / "m", shards=2, tied=True)
    for name in ("model-00002-of-00002.safetensors",):
        assert (tmp_path / "m" / name).stat().st_size > 500_000
    torch.save({"x": torch.zeros(400_000)}, tmp_path / "m" / "pytorch_model.bin")
    hub.add("org/m", tmp_path / "m")
    refused = tieconv("dedup", "hf://org/m", "-o", tmp_path / "out")
    assert refused.returncode == 2 and "--drop-other-formats" in refused.stderr
    assert not (tmp_path / "hf-home" / "hub").exists()
    sound(tieconv("dedup", "hf://org/m", "-o", tmp_path / "out", "--drop-other-formats"))
    assert not [one for one in hub.of("pytorch_model.bin") if one.sent > 100_000]


def test_in_place(hub: Hub, tieconv: Run, models: Path) -> None:
    """--in-place is for local models, and is refused before any request."""
    hub.add("org/m", models / "llama-tied")
    for words in (("untie", "hf://org/m", "--in-place"), ("untie", "--in-place", "hf://org/m")):
        result = tieconv(*words)
        assert result.returncode == 2 and "--in-place" in result.stderr
    assert hub.requests == []


def test_their_client_works_here(hub: Hub, python: Run, models: Path, tmp_path: Path) -> None:
    """huggingface_hub, unmodified, reads this hub as it reads the real one: listings, files, headers, the cache."""
    hub.add("org/m", sharded(tmp_path / "m", shards=8))
    program = """
import os
from huggingface_hub import HfApi, HfFileSystem, hf_hub_download, snapshot_download
from huggingface_hub.errors import EntryNotFoundError, RepositoryNotFoundError, RevisionNotFoundError
api = HfApi()
info = api.model_info("org/m", files_metadata=True)
assert len(info.sha) == 40 and len(info.siblings) == 10
assert {f.path for f in api.list_repo_tree("org/m", recursive=True)} == {s.rfilename for s in info.siblings}
assert len(api.get_safetensors_metadata("org/m").weight_map) == 10
path = hf_hub_download("org/m", "model-00003-of-00008.safetensors")
assert os.path.getsize(path) == next(s.size for s in info.siblings if "00003" in s.rfilename)
assert os.path.isdir(snapshot_download("org/m"))
assert [m.id for m in api.list_models(author="org")] == ["org/m"]
for error, call in (
    (RepositoryNotFoundError, lambda: api.model_info("org/none")),
    (RevisionNotFoundError, lambda: api.model_info("org/m", revision="v9")),
    (EntryNotFoundError, lambda: hf_hub_download("org/m", "none.json")),
):
    try:
        call()
    except error:
        continue
    raise AssertionError(error)
assert HfFileSystem().cat_file("org/m/config.json", start=0, end=1) == b"{"
print("fine")
"""
    result = python(program)
    assert result.stdout.strip() == "fine", result.stderr
    shutil.rmtree(tmp_path / "hf-home")


@pytest.mark.slow
def test_alignment_of_models_on_the_hub(hub: Hub, tieconv: Run, models: Path, tmp_path: Path) -> None:
    """`analyze` takes all of its models from the Hub, of each the weights that loaders prefer, as from a directory."""
    both = tmp_path / "both"
    shutil.copytree(models / "llama-tied", both)
    (both / "pytorch_model.bin").write_bytes(b"the same in another format")
    hub.add("org/tied", both)
    hub.add("org/untied", models / "llama-untied")
    second = tmp_path / "second"  # a model of another seed
    shutil.copytree(models / "llama-untied", second)
    tensors = load_file(second / "model.safetensors")
    generator = torch.Generator().manual_seed(1)
    noise = {name: torch.randn(value.shape, generator=generator).to(value.dtype) for name, value in tensors.items()}
    save_file(noise, second / "model.safetensors", {"format": "pt"})
    hub.add("org/second", second)
    result = sound(
        tieconv("analyze", "hf://org/tied", "--against", "hf://org/untied", "--second", "hf://org/second", "--json")
    )
    here = tieconv(
        *("analyze", models / "llama-tied", "--against", models / "llama-untied"), *("--second", second, "--json")
    )
    there, local = (json.loads(text)["sections"][-1] for text in (result.stdout, here.stdout))
    assert there["title"] == "Alignment" and there["measures"] == local["measures"]
    assert hub.of("model.safetensors")
    assert not [one for one in hub.requests if one.path.endswith("pytorch_model.bin") and one.method == "GET"]


NOTES = "notes.data"  # an LFS file that a plan does not read, and a fetch brings


@pytest.fixture
def model(hub: Hub, models: Path, tmp_path: Path) -> Path:
    path = Path(shutil.copytree(models / "llama-tied", tmp_path / "m"))
    (path / NOTES).write_bytes(bytes(range(256)) * 4096)
    hub.add("org/m", path)
    return path


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("kind", "value", "says"),
    [
        ("truncate", "", "connection to the Hub failed"),
        ("hang-up", "", "connection to the Hub failed"),
        ("status", "429", "no more requests for now"),
        ("status", "403", "may not read this model"),
        ("too-long", "", "the server sent more than 1,048,576 bytes"),
    ],
)
def test_no_address_is_repeated(kind: str, value: str, says: str, model: Path, hub: Hub, tieconv: Run) -> None:
    """huggingface_hub's log names signed addresses of the storage; of a fetch that fails one sentence is said."""
    hub.faults[NOTES] = Fault(kind, value=value)
    error, _ = refused(tieconv("untie", "hf://org/m", "-o", "out", HF_TOKEN=TOKEN))
    assert says in error and hub.storage not in error
    assert not list(model.parent.glob("*out*"))
    hub.faults.clear()
    assert tieconv("untie", "hf://org/m", "-o", "out").returncode == 0
    assert (model.parent / "out" / NOTES).read_bytes() == (model / NOTES).read_bytes()


def test_fault_that_passes(model: Path, hub: Hub, tieconv: Run) -> None:
    """A transfer that huggingface_hub takes up again says nothing of it."""
    quiet = tieconv("untie", "hf://org/m", "-o", "first")
    shutil.rmtree(model.parent / "hf-home")
    hub.faults[NOTES] = Fault("truncate", 1)
    result = tieconv("untie", "hf://org/m", "-o", "again")
    assert (result.returncode, result.stderr) == (0, quiet.stderr.replace("first", "again"))
    assert hub.faults[NOTES].times == 0


def test_uploads_repeat_no_address(model: Path, hub: Hub, models: Path, tieconv: Run) -> None:
    """Where to upload is a signed address too."""
    hub.faults["upload"] = Fault("status", 1, "503")
    result = sound(tieconv("push", models / "llama-untied", "hf://org/m", "--yes", HF_TOKEN=TOKEN))
    assert hub.faults["upload"].times == 0 and hub.storage not in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_asked_to_wait_for_long(model: Path, hub: Hub, tieconv: Run) -> None:
    """A server that asks for an hour is not waited for: the user is told."""
    hub.faults[NOTES] = Fault("retry-after", value="3600")
    _, hint = refused(tieconv("untie", "hf://org/m", "-o", "out"))
    assert "3600 seconds" in hint


def test_end_of_the_window() -> None:
    """The Hub says in `RateLimit` when it takes requests again; a window that is not used up asks for no wait."""
    from types import SimpleNamespace

    from huggingface_hub import HfApi  # noqa: F401 - its headers are a mapping without regard to case

    from tieconv.sources.hub.session import retry_after

    def asked(**headers: str) -> float | None:
        return retry_after(SimpleNamespace(headers=headers))

    assert asked(ratelimit='"api";r=0;t=55') == 55
    assert asked(ratelimit='"api";r=7;t=55') is None
    assert asked(**{"Retry-After": "3", "ratelimit": '"api";r=0;t=55'}) == 3
    assert retry_after(None) is None


def test_cache_that_cannot_be_written(model: Path, tieconv: Run, tmp_path: Path) -> None:
    """That is no fault of the network, and what the disk says is passed on."""
    (tmp_path / "file").write_text("")
    error, hint = refused(tieconv("untie", "hf://org/m", "-o", "out", HF_HUB_CACHE=str(tmp_path / "file" / "hub")))
    assert "the local cache cannot be used: not a directory" in error and "HF_HOME" in hint


def test_full_disk() -> None:
    """A disk that is full is told as one."""
    import errno

    from tieconv.sources.hub.session import translate

    told = translate(OSError(errno.ENOSPC, "x", "/cache"), "hf://org/m")
    assert told.message.endswith("no space left on device") and told.code == "hub.cache"


def test_moved_while_it_was_listed(hub: Hub, tieconv: Run, environment: dict[str, str], tmp_path: Path) -> None:
    """A branch that moves between the listing and the fetch stops it: its files may have other names."""
    hub.add("org/m", sharded(tmp_path / "m", shards=2, tied=True))
    program = (
        "from tieconv.sources.hub import files as hub_cache\n"
        "import huggingface_hub as h, os\n"
        "old = hub_cache.snapshot_download\n"
        "def moved(*a, **k):\n"
        "    root = old(*a, **k)\n"
        "    new = os.path.join(os.path.dirname(root), 'f' * 40)\n"
        "    os.rename(root, new)\n"
        "    return new\n"
        "hub_cache.snapshot_download = moved\n"
        "from tieconv.cli import main; main(['retie', 'hf://org/m', '-o', 'out'])"
    )
    result = subprocess.run(
        [sys.executable, "-P", "-c", program],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=HANGS,
    )
    assert "has a new commit" in refused(result)[0]
    assert not (tmp_path / "out").exists()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("words", [("inspect", "hf://org/s"), ("untie", "hf://org/m", "-o", "out")], ids=" ".join)
def test_interrupt(
    words: tuple[str, ...], model: Path, hub: Hub, tieconv: Run, environment: dict[str, str], tmp_path: Path
) -> None:
    """^C is heeded while a server is silent; nothing is in the place of OUT, and the cache is as good as before."""
    hub.add("org/s", sharded(tmp_path / "s", shards=3))
    for name in (NOTES, "model-00002-of-00003.safetensors"):
        hub.faults[name] = Fault("stall", value="60")
    interrupt(words, hub, environment, tmp_path)
    assert not list(tmp_path.glob("*out*"))
    hub.faults.clear()
    assert tieconv(*words).returncode == 0
