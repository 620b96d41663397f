"""On the Hub: graphs, GGUF files and distributed checkpoints by their headers, and one file of many."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from fixtures.gguf_bytes import gguf
from fixtures.onnx_graphs import BUILDERS, build
from fixtures.public.directories import POINTER
from tests.children import sound
from tests.hub.conftest import Run
from tests.hub.models import EMBEDDING, HEAD, inspected, local, noise, sharded, states, verdict, write_shard
from tests.hub.stub import Hub

V, H = 4096, 256


def large_graph(path: Path, *, external: bool, head: str = "copy") -> Path:
    """A graph with an embedding and a head of 2 MB each, and twenty matrices between them."""
    import numpy as np
    from onnx import TensorProto

    from tests.onnx.nodes import model, op, save, token_ids, value

    rng = np.random.default_rng(0)
    table = rng.standard_normal((V, H)).astype("f2")
    arrays = {"embed": table, "head": table.copy() if head == "copy" else rng.standard_normal((V, H)).astype("f2")}
    nodes = [op("Gather", "embed input_ids", "h0")]
    for layer in range(20):
        arrays[f"w{layer}"] = rng.standard_normal((H, H)).astype("f2")
        nodes.append(op("MatMul", f"h{layer} w{layer}", f"h{layer + 1}"))
    nodes.append(op("Gemm", "h20 head", "logits", transB=1))
    logits = value("logits", ["n", V], TensorProto.FLOAT16)
    return save(model(nodes, [token_ids(sides=["n"])], [logits], arrays, opset=18), path, external=external)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("name", "external"),
    [*((name, True) for name in sorted(BUILDERS)), ("transposed", False), ("cast", False), ("branches", False)],
)
def test_graph_is_judged_as_its_directory(name: str, external: bool, hub: Hub, tieconv: Run, tmp_path: Path) -> None:
    """A graph on the Hub, with its data beside or inside, is judged as the local one where all is compared."""
    build(name, tmp_path / "m" / "model.onnx", external=external)
    hub.add("org/m", tmp_path / "m")
    far = inspected(tieconv("inspect", "hf://org/m", "--depth", "full", "--json"))
    assert verdict(far) == verdict(local(tmp_path / "m", depth="full"))


@pytest.mark.parametrize("external", [True, False], ids=["beside", "inside"])
@pytest.mark.parametrize("head", ["copy", "other"])
def test_graph_by_ranges(head: str, external: bool, hub: Hub, tieconv: Run, tmp_path: Path) -> None:
    """A graph's structure comes by ranges, its matrices stay where they are: a sample may say `distinct`, no more."""
    large_graph(tmp_path / "m" / "onnx" / "model.onnx", external=external, head=head)
    hub.add("org/m", tmp_path / "m")
    whole = local(tmp_path / "m" / "onnx" / "model.onnx")
    far = inspected(tieconv("inspect", "hf://org/m/onnx/model.onnx", "--json"))
    assert states(whole)["head"][0] == ("identical" if head == "copy" else "distinct")
    assert states(far)["head"][0] == ("unread" if head == "copy" else "distinct")
    assert far["head"] == whole["head"] and far["model"]["tensors"] == 22  # type: ignore[index]
    assert hub.sent < 300_000 < sum(path.stat().st_size for path in (tmp_path / "m" / "onnx").iterdir())
    assert len([one for one in hub.requests if one.server == "storage"]) < 30
    hub.requests.clear()
    header = inspected(tieconv("inspect", "hf://org/m", "--depth", "header", "--json"))
    assert states(header)["head"][0] == "unread"


def test_graph_of_many_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that would take thousands of requests is refused with the way out; a local one is read."""
    from tieconv.errors import UnreadableError
    from tieconv.formats.onnx import messages as protobuf

    piece = b"\x0a\xa0\x9c\x01" + bytes(20_000)  # field 1 of so many bytes
    data = piece * 50
    monkeypatch.setattr(protobuf, "MAX_JUMPS", 40)
    for sparse in (False, True):
        asked: list[int] = []

        def pread(size: int, offset: int, asked: list[int] = asked) -> bytes:
            asked.append(size)
            return data[offset : offset + size]

        wire = protobuf.Wire(pread, len(data), "model.onnx", "ONNX graph", sparse=sparse)
        if not sparse:
            assert len(list(wire.fields(0, len(data)))) == 50
            continue
        with pytest.raises(UnreadableError, match="more than 40 requests") as caught:
            list(wire.fields(0, len(data)))
        assert "hf download" in caught.value.hint and max(asked) <= 4096


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "words",
    [("dedup",), ("untie",), ("untie", "-o", "out"), ("retie",), ("set-tie", "true"), ("bias", "zero"),
     ("convert", "--to", "torch"), ("diff", "hf://org/m"), ("analyze",), ("export", "-o", "out")],
    ids=" ".join,
)  # fmt: skip
def test_graph_is_only_inspected(words: tuple[str, ...], hub: Hub, tieconv: Run, tmp_path: Path) -> None:
    """What else is done with a graph starts from a directory: one sentence says so before anything is fetched."""
    build("shared", tmp_path / "m" / "model.onnx")
    hub.add("org/m", tmp_path / "m")
    result = tieconv(*words, "hf://org/m")
    assert result.returncode == 2, result.stdout
    error, hint = result.stderr.splitlines()
    assert error == "error: hf://org/m has ONNX graphs, and on the Hub tieconv can only inspect graphs"
    assert hint.endswith("hf download org/m --local-dir DIR")
    assert not (tmp_path / "hf-home" / "hub").exists()


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "pytorch_model.bin", "model.gguf", "model.onnx"])
def test_a_pointer_on_the_hub_is_named(name: str, hub: Hub, tieconv: Run, tmp_path: Path) -> None:
    """A repository to which somebody uploaded a clone without Git LFS: the file is the pointer itself."""
    (tmp_path / "m").mkdir()
    if name == "config.json":
        write_shard(tmp_path / "m" / "model.safetensors", {EMBEDDING: ((2, 2), noise(8, 1))})
    (tmp_path / "m" / name).write_text(POINTER)
    hub.add("org/m", tmp_path / "m")
    result = tieconv("inspect", "hf://org/m")
    assert result.returncode == 2, result.stdout
    assert f"{name} is a Git LFS pointer, not the file itself" in result.stderr


def words_of(count: int) -> dict[str, object]:
    """The metadata of a model with a vocabulary."""
    return {"general.architecture": "llama", "tokenizer.ggml.tokens": [f"token-{n:08d}" for n in range(count)]}


@pytest.fixture
def quantised(tmp_path: Path) -> Path:
    """A GGUF model of 2.5 MB, half of it header, with a head that is its embedding over again."""
    table = bytes(range(64)) * 8192
    tensors = [(name, (1024, 256), 1, table) for name in ("token_embd.weight", "output.weight")]
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "model-Q4.gguf").write_bytes(gguf(tensors, words_of(60_000)))
    return tmp_path / "m"


def test_gguf(quantised: Path, hub: Hub, tieconv: Run) -> None:
    """A GGUF file is read by its header; samples prove nothing, and full depth is that of a local file."""
    hub.add("org/m", quantised)
    far = inspected(tieconv("inspect", "hf://org/m", "--json"))
    assert states(far)["output.weight"][0] == "unread"
    size, table = (quantised / "model-Q4.gguf").stat().st_size, bytes(2 * 1024 * 256)
    assert hub.sent < 1.5 * (size - 2 * len(table))
    for depth in ("header", "full"):
        full = inspected(tieconv("inspect", "hf://org/m", "--depth", depth, "--json"))
        assert verdict(full) == verdict(local(quantised, depth=depth))
    assert states(full)["output.weight"][0] == "identical"
    untied = tieconv("untie", "hf://org/m")
    assert untied.returncode == 0 and "already untied: nothing to change" in untied.stdout
    refused = tieconv("dedup", "hf://org/m")
    assert refused.returncode == 2 and "only retie and untie change it" in refused.stderr


def test_one_of_several_gguf_files(quantised: Path, hub: Hub, tieconv: Run) -> None:
    """Of several models which one is meant has to be said; the hint names one, and it is read."""
    (quantised / "model-Q8.gguf").write_bytes((quantised / "model-Q4.gguf").read_bytes())
    repo = hub.add("org/m", quantised)
    several = tieconv("inspect", "hf://org/m")
    assert several.returncode == 2
    name, command = several.stderr.split("give the path of one of them: ")[1].strip().split("; or check each: ")
    assert name == "hf://org/m/model-Q4.gguf"
    both = tieconv(*command.split()[1:], "--format", "json")  # the command of the hint is what it says
    assert [model["source"] for model in json.loads(both.stdout)["models"]] == command.split()[2:] == [
        name, name.replace("Q4", "Q8"),
    ]  # fmt: skip
    assert tieconv("check", "hf://org/m").stdout.count(command) == 1
    found = inspected(tieconv("inspect", name, "--depth", "header", "--json"))
    near = local(quantised / "model-Q4.gguf", depth="header")
    assert verdict(found) == verdict(near)
    at = inspected(tieconv("inspect", f"hf://org/m@{repo.commit}/model-Q8.gguf", "--depth", "header", "--json"))
    assert at["head"] == near["head"]


@pytest.mark.parametrize("words", [(), ("--depth", "full")], ids=["candidates", "full"])
def test_distributed_checkpoint(words: tuple[str, ...], hub: Hub, tieconv: Run, tmp_path: Path) -> None:
    """A distributed checkpoint is read by its metadata alone, whatever the depth, and judged as the local headers."""
    import torch
    import torch.distributed.checkpoint as dcp

    table = torch.arange(2048 * 128, dtype=torch.float32).reshape(2048, 128)
    dcp.save({EMBEDDING: table, HEAD: table.clone()}, checkpoint_id=tmp_path / "m", no_dist=True)
    hub.add("org/m", tmp_path / "m")
    far = inspected(tieconv("inspect", "hf://org/m", *words, "--json"))
    assert verdict(far) == verdict(local(tmp_path / "m", depth="header"))
    assert states(far)[HEAD][0] == "unread"
    assert not hub.of("__0_0.distcp") and len(hub.of(".metadata")) == 1
    refused = tieconv("retie", "hf://org/m", "-o", "out")
    assert refused.returncode == 2 and "never writes" in refused.stderr
    step = "copy it to this machine, and convert it there"
    assert (
        step in refused.stderr and step in tieconv("convert", "hf://org/m", "--to", "safetensors", "-o", "out").stderr
    )
    assert not (tmp_path / "hf-home" / "hub").exists()


def test_directory_and_shard_of_a_repository(hub: Hub, tieconv: Run, tmp_path: Path) -> None:
    """A directory of a repository is a model of its own, one shard is a file, an index stands for its directory."""
    (tmp_path / "m").mkdir()
    inner = sharded(tmp_path / "m" / "step 100", shards=2)
    hub.add("org/m", tmp_path / "m")
    for name in ("", "model-00001-of-00002.safetensors", "model.safetensors.index.json"):
        far = inspected(tieconv("inspect", f"hf://org/m/step 100/{name}".rstrip("/"), "--depth", "header", "--json"))
        assert verdict(far) == verdict(local(inner / name, depth="header"))
    sound(tieconv("set-tie", "true", "--force", "hf://org/m/step 100", "-o", tmp_path / "out"))
    assert json.loads((tmp_path / "out" / "config.json").read_text())["tie_word_embeddings"] is True
    assert sorted(os.listdir(tmp_path / "out")) == sorted(os.listdir(inner))
    hub.requests.clear()
    offline = inspected(tieconv("inspect", "hf://org/m/step 100", "--json", HF_HUB_OFFLINE="1"))
    assert states(offline) == states(local(inner)) and hub.requests == []
    missing = tieconv("inspect", "hf://org/m/step 200")
    assert missing.returncode == 2 and "no such file in the repository" in missing.stderr
    missing = tieconv("inspect", "hf://org/m/step 200", HF_HUB_OFFLINE="1")
    assert missing.returncode == 2 and "hf download org/m 'step 200'" in missing.stderr


def test_one_file_is_all_that_is_fetched(hub: Hub, tieconv: Run, tmp_path: Path) -> None:
    """To write from one file of a repository fetches that file and no other."""
    (tmp_path / "m").mkdir()
    tensors = {EMBEDDING: ((2048, 128), noise(2048 * 256, 1)), HEAD: ((2048, 128), noise(2048 * 256, 1))}
    for name in ("model.safetensors", "other.safetensors"):
        write_shard(tmp_path / "m" / name, tensors)
    hub.add("org/m", tmp_path / "m")
    words = ("bias", "zero", "--embed", EMBEDDING, "--head", HEAD)
    far = tieconv(*words, "hf://org/m/other.safetensors", "-o", tmp_path / "far.safetensors")
    near = tieconv(*words, tmp_path / "m" / "other.safetensors", "-o", tmp_path / "near.safetensors")
    assert (far.returncode, near.returncode) == (0, 0), far.stderr + near.stderr
    assert (tmp_path / "far.safetensors").read_bytes() == (tmp_path / "near.safetensors").read_bytes()
    assert not hub.of("model.safetensors")


@pytest.mark.parametrize(
    ("source", "repo", "revision", "path"),
    [
        ("hf://o/n", "o/n", None, ""),
        ("hf://o/n@v1.0", "o/n", "v1.0", ""),
        ("hf://o/n/onnx/model.onnx", "o/n", None, "onnx/model.onnx"),
        ("hf://o/n@v1/x.gguf", "o/n", "v1", "x.gguf"),
        ("hf://o/n@refs/pr/3", "o/n", "refs/pr/3", ""),
        ("hf://o/n@refs/pr/3/x.gguf", "o/n", "refs/pr/3", "x.gguf"),
        ("hf://o/n@feature%2Fx/y/z.bin", "o/n", "feature/x", "y/z.bin"),
        ("hf://o/n/odd@name.bin", "o/n", None, "odd@name.bin"),
    ],
)
def test_names(source: str, repo: str, revision: str | None, path: str) -> None:
    """Files are named as huggingface_hub names them, which the same words given to its file system say."""
    from huggingface_hub import HfFileSystem

    from tieconv.sources.hub import RepoPath, parse

    assert parse(source) == RepoPath(repo, revision, path)
    assert parse(str(parse(source))) == parse(source)
    theirs = HfFileSystem()
    theirs._repo_and_revision_exist = lambda *_: (True, None)  # type: ignore[method-assign]
    told = theirs.resolve_path(source)
    assert (told.repo_id, told.path_in_repo) == (repo, path) and told.revision in (revision, "main")
