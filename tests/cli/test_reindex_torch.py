"""`tieconv reindex` of torch shards: what it holds of safetensors holds of `pytorch_model-*.bin` too."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import tieconv
from tests.cli.run import ok, refused
from tests.cli.stored import PLAN, plan, snapshot
from tests.reload.judge import differences, load
from tests.schemas import validate

INDEX = "pytorch_model.bin.index.json"
SHARDS = [f"pytorch_model-0000{number}-of-00003.bin" for number in (1, 2, 3)]


@pytest.fixture
def folder(model) -> Path:
    """The sharded fixture as older transformers saved it."""
    path = model("llama-tied-sharded")
    index = json.loads((path / "model.safetensors.index.json").read_text())
    for number, shard in enumerate(SHARDS, 1):
        source = path / f"model-0000{number}-of-00003.safetensors"
        torch.save(load_file(source), path / shard)
        source.unlink()
    (path / "model.safetensors.index.json").unlink()
    index["weight_map"] = {
        name: shard.replace("model-", "pytorch_model-").replace(".safetensors", ".bin")
        for name, shard in index["weight_map"].items()
    }
    (path / INDEX).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")
    return path


def read(folder: Path) -> dict[str, torch.Tensor]:
    """Every tensor by the index alone: from the shard that it names."""
    entries = json.loads((folder / INDEX).read_text())["weight_map"]
    shards = {shard: torch.load(folder / shard, weights_only=True) for shard in set(entries.values())}
    return {name: shards[shard][name] for name, shard in entries.items()}


def test_a_right_index_stays(folder: Path, tmp_path: Path) -> None:
    """Nothing to change: the copy is the model, byte for byte."""
    document = plan("reindex", folder, "-o", tmp_path / "out")
    validate(document, PLAN)
    assert "nothing to change" in document["summary"]
    assert snapshot(tmp_path / "out") == snapshot(folder)


@pytest.mark.parametrize("content", [None, "{", '{"weight_map": {"model.norm.weight": "gone.bin"}, "metadata": {}}'])
def test_from_the_shards_alone(folder: Path, tmp_path: Path, content: str | None) -> None:
    """Missing, malformed or wrong: transformers and `torch.load` find every tensor again."""
    before, judged = read(folder), load("LlamaForCausalLM", folder)
    first = json.loads((folder / INDEX).read_text())
    (folder / INDEX).unlink()
    if content is not None:
        (folder / INDEX).write_text(content)
    source = snapshot(folder)
    ok("reindex --dry-run", folder, "-o", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    ok("reindex", folder, "-o", tmp_path / "out")
    assert snapshot(folder) == source
    after = read(tmp_path / "out")
    assert after.keys() == before.keys() and all(torch.equal(after[name], before[name]) for name in before)
    loaded = load("LlamaForCausalLM", tmp_path / "out")
    assert differences(judged, loaded, shares_head=True) == [] and not loaded.missing
    assert json.loads((tmp_path / "out" / INDEX).read_text())["metadata"] == {
        "total_size": first["metadata"]["total_size"]
    }
    ok("reindex --in-place", folder)
    assert snapshot(folder) == snapshot(tmp_path / "out")
    assert tieconv.inspect(folder).checkpoint.cautions == ()


def test_a_missing_shard_is_refused(folder: Path) -> None:
    """What is not there cannot be indexed, whether the index names it or there is none."""
    (folder / SHARDS[1]).unlink()
    assert f"the shard {SHARDS[1]}, which is missing" in refused("reindex", folder)
    (folder / INDEX).unlink()
    assert f"the shard {SHARDS[1]}, which is missing" in refused("reindex", folder)


def test_tensors_in_two_shards(folder: Path) -> None:
    """Equal values are one tensor, however they are strided; values that differ are nobody's to choose."""
    entries = json.loads((folder / INDEX).read_text())["weight_map"]
    name = next(name for name in entries if name.endswith("q_proj.weight"))
    second_shard = next(shard for shard in SHARDS if shard != entries[name])
    value = torch.load(folder / entries[name], weights_only=True)[name]
    stored = torch.load(folder / second_shard, weights_only=True)
    transposed = value.t().contiguous().t()
    assert not transposed.is_contiguous()
    torch.save(stored | {name: transposed}, folder / second_shard)
    assert "nothing to change" in plan("reindex", folder)["summary"]
    torch.save(stored | {name: value + 1}, folder / second_shard)
    sentence = refused("reindex", folder)
    assert name in sentence and entries[name] in sentence and second_shard in sentence


def test_one_storage_counts_once(folder: Path) -> None:
    """total_size as transformers counts it: two names of one storage once. An index that counts each stays right."""
    (folder / INDEX).unlink()
    first = torch.load(folder / SHARDS[0], weights_only=True)
    name, value = next(iter(first.items()))
    torch.save(first | {"twin.weight": first[name]}, folder / SHARDS[0])
    ok("reindex --in-place", folder)
    index = json.loads((folder / INDEX).read_text())
    distinct = {key: tensor.nbytes for key, tensor in read(folder).items() if key != "twin.weight"}
    assert index["metadata"]["total_size"] == sum(distinct.values())
    index["metadata"]["total_size"] += value.nbytes
    (folder / INDEX).write_text(json.dumps(index))
    assert "nothing to change" in plan("reindex", folder)["summary"]


def test_strays_come_along_or_are_left_out(folder: Path, tmp_path: Path) -> None:
    """Other torch weights are listed and --prune leaves them out; what a trainer left is no weight and stays."""
    torch.save({"w": torch.zeros(1)}, folder / "consolidated.00.pth")
    torch.save({"step": 1}, folder / "optimizer.pt")
    document = plan("reindex", folder, "-o", tmp_path / "kept")
    assert "outside the index: consolidated.00.pth; kept" in document["notes"][0]
    document = plan("reindex --prune", folder, "-o", tmp_path / "pruned")
    assert document["files_removed"] == ["consolidated.00.pth"]
    assert not (tmp_path / "pruned" / "consolidated.00.pth").exists()
    assert (tmp_path / "pruned" / "optimizer.pt").exists()


def test_a_training_checkpoint_is_refused(folder: Path) -> None:
    """Shards whose tensors lie under a key of a training state: no loader would find them by an index."""
    stored = torch.load(folder / SHARDS[0], weights_only=True)
    torch.save({"model": stored, "step": 3}, folder / SHARDS[0])
    assert SHARDS[0] in refused("reindex", folder)
