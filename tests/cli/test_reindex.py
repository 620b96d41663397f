"""`tieconv reindex`: a damaged index becomes the one that the shards call for, and a wrapper's prefix goes."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

import tieconv
from tests.cli.run import ok, refused, run
from tests.cli.stored import plan, snapshot
from tests.conftest import ROOT
from tests.lazy import load_file, save_file, torch, transformers
from tests.patience import examples
from tests.reload.judge import differences, load
from tieconv.architectures.stored_names import unwrapping, wrappers_of

INDEX = "model.safetensors.index.json"
SHARDS = [f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]
TORCH_INDEX = "pytorch_model.bin.index.json"
TORCH_SHARDS = [f"pytorch_model-0000{number}-of-00003.bin" for number in (1, 2, 3)]
ORIGINAL = (ROOT / "fixtures" / "models" / "llama-tied-sharded" / INDEX).read_text()
ENTRIES = json.loads(ORIGINAL)["weight_map"]
NAMES = sorted(ENTRIES)


@pytest.fixture
def folder(model) -> Path:
    return model("llama-tied-sharded")


def index(folder: Path, **changes: Any) -> dict[str, Any]:
    """The index, after changes to its weight map (``None`` removes an entry)."""
    value: dict[str, Any] = json.loads((folder / INDEX).read_text())
    entries = value["weight_map"] | changes
    value["weight_map"] = {name: shard for name, shard in entries.items() if shard is not None}
    (folder / INDEX).write_text(json.dumps(value, indent=2, sort_keys=True) + "\n")
    return value


@pytest.mark.parametrize("form", ["folder", "torch_folder"])
def test_a_right_index_stays(form: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Nothing to change: the copy is the model, byte for byte."""
    folder = request.getfixturevalue(form)
    assert "nothing to change" in plan("reindex", folder, "-o", tmp_path / "out")["summary"]
    assert snapshot(tmp_path / "out") == snapshot(folder)


@pytest.mark.parametrize("name", ["model.norm.weight", "model.embed_tokens.weight"])
def test_what_the_index_left_out_is_told(folder: Path, tmp_path: Path, name: str) -> None:
    """transformers 4 reads the tensors that the index names and no others, so for it this is another model."""
    index(folder, **{name: None})
    document = plan("reindex", folder, "-o", tmp_path / "out")
    assert document["notes"][-1].startswith(f"transformers 4 loads {name}")
    assert "with random numbers now and with" in document["notes"][-1]
    result = run("diff", folder, tmp_path / "out")
    assert result.exit_code == 1 and "transformers 4" in result.stdout
    assert ok("diff", tmp_path / "out", tmp_path / "out").exit_code == 0


def test_an_entry_that_names_no_shard(folder: Path) -> None:
    """Beside a shard that the index does not list: an entry that is no text lists nothing, and breaks nothing."""
    unlisted = {name: None for name, shard in ENTRIES.items() if shard == SHARDS[1]}
    index(folder, **unlisted, odd=[SHARDS[0]])
    plan = ok("reindex", folder).stdout
    assert f"{len(unlisted)} entries added" in plan and "transformers 4 and 5 load" in plan


def test_a_head_bias_that_the_index_left_out(model, tmp_path: Path) -> None:
    """Compared under a name of its own, and missed by transformers 4 all the same."""
    ok("convert --to safetensors --max-shard-size 20KB", model("bert-mlm"), "-o", tmp_path / "shards")
    index(tmp_path / "shards", **{"cls.predictions.bias": None})
    ok("reindex", tmp_path / "shards", "-o", tmp_path / "out")
    assert run("diff", tmp_path / "shards", tmp_path / "out").exit_code == 1


@pytest.mark.parametrize("content", [None, "", "{", '{"weight_map": 3}', "[]", '{"weight_map": {}}', "\xff"])
def test_without_a_readable_index(folder: Path, models: Path, tmp_path: Path, content: str | None) -> None:
    """Missing or malformed (C30): the shards alone give it; only what no header knows is lost."""
    (folder / INDEX).unlink()
    if content is not None:
        (folder / INDEX).write_bytes(content.encode("latin-1"))
    ok("reindex", folder, "-o", tmp_path / "out")
    rebuilt, original = json.loads((tmp_path / "out" / INDEX).read_text()), json.loads(ORIGINAL)
    assert rebuilt["weight_map"] == original["weight_map"]
    assert rebuilt["metadata"] == {"total_size": original["metadata"]["total_size"]}
    before, after = (load("LlamaForCausalLM", path) for path in (models / folder.name, tmp_path / "out"))
    assert differences(before, after, shares_head=True) == [] and not after.missing


names = st.sampled_from(NAMES)
large, texts = st.integers(10**20, 10**700), st.text(max_size=3) | st.just("\ud800")
damage = st.fixed_dictionaries({
    "drop": st.sets(names),
    "move": st.dictionaries(names, st.sampled_from([*SHARDS, SHARDS[0].replace("1-of", "9-of"), "gone.safetensors"])),
    "add": st.dictionaries(st.text(min_size=1, max_size=8), st.sampled_from(SHARDS), max_size=3),
    "total": st.one_of(st.none(), st.integers(), large, st.floats(), texts),
    "strip_shard": st.sampled_from([None, *SHARDS]),
})  # fmt: skip


@given(damage)
@settings(deadline=None, max_examples=examples(60))
def test_any_damaged_index_becomes_the_first_one(harm: dict[str, Any]) -> None:
    """Entries dropped, moved, invented, totals wrong: the text of the first index, byte for byte."""
    value = json.loads(ORIGINAL)
    entries = ENTRIES | harm["move"] | {name: shard for name, shard in harm["add"].items() if name not in NAMES}
    absent = harm["drop"] | {name for name, shard in entries.items() if shard == harm["strip_shard"]}
    # A file in which nothing is left has no order of its own to keep.
    value["weight_map"] = dict(sorted((name, shard) for name, shard in entries.items() if name not in absent))
    value["metadata"]["total_size"] = harm["total"]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch, "model")
        shutil.copytree(ROOT / "fixtures" / "models" / "llama-tied-sharded", folder)
        (folder / INDEX).write_text(json.dumps(value))
        plan = tieconv.plan_reindex(folder)
        invented = [name for name in value["weight_map"] if name not in NAMES]
        notes = [str(note) for note in plan.plan.notes]
        assert any("entries that no shard stores" in note for note in notes) is bool(invented)
        plan.execute(in_place=True)
        assert (folder / INDEX).read_text() == ORIGINAL
        assert tieconv.inspect(folder).checkpoint.cautions == ()


def test_the_order_of_an_index_is_kept(folder: Path) -> None:
    """An index whose entries are not sorted keeps their order; new ones follow."""
    value = json.loads(ORIGINAL)
    backwards = dict(reversed(value["weight_map"].items()))
    lost = backwards.pop(NAMES[3])
    (folder / INDEX).write_text(json.dumps(value | {"weight_map": backwards}))
    ok("reindex --in-place", folder)
    rebuilt = json.loads((folder / INDEX).read_text())
    assert list(rebuilt["weight_map"].items()) == [*backwards.items(), (NAMES[3], lost)]
    assert rebuilt["metadata"] == value["metadata"]


def test_tensors_in_two_shards(folder: Path, tmp_path: Path) -> None:
    """Equal copies are indexed where the index has them; copies that differ are nobody's to choose."""
    name = NAMES[1]
    home = ENTRIES[name]
    second_shard = next(shard for shard in SHARDS if shard != home)
    value, target = load_file(folder / home)[name], folder / second_shard
    stored = load_file(target) | {name: value}
    save_file(stored, target, {"format": "pt"})
    index(folder, **{name: second_shard})
    ok("reindex", folder, "-o", tmp_path / "out")
    assert json.loads((tmp_path / "out" / INDEX).read_text())["weight_map"][name] == second_shard
    save_file(stored | {name: value + 1}, target, {"format": "pt"})
    sentence = refused("reindex", folder)
    assert name in sentence and home in sentence and second_shard in sentence


def test_strays_come_along_or_are_left_out(folder: Path, tmp_path: Path) -> None:
    """Files outside the index (C31) are listed; --prune leaves them out of OUT and never touches the source."""
    save_file(load_file(folder / SHARDS[0]), folder / "consolidated.safetensors")
    (folder / "original").mkdir()
    (folder / "original" / "w.safetensors").write_bytes(b"")
    before = snapshot(folder)
    index(folder, **{NAMES[0]: None})
    document = plan("reindex", folder, "-o", tmp_path / "kept")
    assert document["notes"][0] == "outside the index: consolidated.safetensors; kept (--prune leaves it out)"
    assert (tmp_path / "kept" / "consolidated.safetensors").exists()
    document = plan("reindex --prune", folder, "-o", tmp_path / "pruned")
    assert document["files_removed"] == ["consolidated.safetensors"]
    assert not (tmp_path / "pruned" / "consolidated.safetensors").exists()
    assert (tmp_path / "pruned" / "original" / "w.safetensors").exists()
    index(folder, **{NAMES[0]: ENTRIES[NAMES[0]]})
    assert snapshot(folder) == before


def test_a_head_shard_belongs_to_the_model(folder: Path, tmp_path: Path) -> None:
    """The shard that `untie` adds is found without its index."""
    ok("untie", folder, "-o", tmp_path / "untied")
    expected = json.loads((tmp_path / "untied" / INDEX).read_text())["weight_map"]
    (tmp_path / "untied" / INDEX).unlink()
    ok("reindex --in-place", tmp_path / "untied")
    assert json.loads((tmp_path / "untied" / INDEX).read_text())["weight_map"] == expected


@pytest.mark.parametrize(
    ("form", "shard", "index"), [("folder", SHARDS[1], INDEX), ("torch_folder", TORCH_SHARDS[1], TORCH_INDEX)]
)
def test_a_missing_shard_is_refused(form: str, shard: str, index: str, request: pytest.FixtureRequest) -> None:
    """What is not there cannot be indexed, whether the index names it or there is none."""
    folder = request.getfixturevalue(form)
    (folder / shard).unlink()
    assert f"the shard {shard}, which is missing" in refused("reindex", folder)
    (folder / index).unlink()
    assert f"the shard {shard}, which is missing" in refused("reindex", folder)


def test_an_emptied_shard_is_not_missed(folder: Path) -> None:
    """A re-tie that emptied a shard left a gap in the numbers, which the index does not name."""
    (folder / SHARDS[1]).unlink()
    index(folder, **{name: None for name, shard in ENTRIES.items() if shard == SHARDS[1]})
    ok("reindex --in-place", folder)
    assert index(folder)["weight_map"] == {name: shard for name, shard in ENTRIES.items() if shard != SHARDS[1]}


def test_shards_of_two_models(folder: Path) -> None:
    """The index chooses between two sets; without one nobody can."""
    (folder / "other-00001-of-00001.safetensors").write_bytes((folder / SHARDS[0]).read_bytes())
    assert "outside the index: other" in plan("reindex", folder)["notes"][0]
    (folder / INDEX).unlink()
    assert "shards of more than one model" in refused("reindex", folder)


STALE = {name: shard.replace("of-00003", "of-00009") for name, shard in ENTRIES.items()}


def test_a_stale_index_is_named(folder: Path) -> None:
    """A later save left whole shards under other names: every command names the index and offers reindex."""
    index(folder, **STALE)
    for verb in ("inspect", "check", "untie"):
        result = run(verb, folder)
        assert result.exit_code == 2, verb
        assert f"{INDEX} is stale" in result.output and "tieconv reindex" in result.output, (verb, result.output)
    ok("reindex --in-place", folder)
    assert index(folder)["weight_map"] == ENTRIES


def test_a_stale_index_beside_a_shard_of_its_own(folder: Path) -> None:
    """The complete set wins over an older one with a gap, if it stores each tensor of the older shards."""
    index(folder, **STALE)
    (folder / SHARDS[0].replace("of-00003", "of-00009")).write_bytes((folder / SHARDS[0]).read_bytes())
    assert "is stale" in refused("inspect", folder)
    ok("reindex --in-place", folder)
    assert index(folder)["weight_map"] == ENTRIES


def test_an_older_set_with_a_tensor_of_its_own(folder: Path) -> None:
    """No set is chosen if the other one stores a tensor that would be lost."""
    index(folder, **STALE, extra=SHARDS[0].replace("3.", "9."))
    data = (folder / SHARDS[0]).read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    first = next(name for name in header if name != "__metadata__")
    text = json.dumps({"extra" if name == first else name: entry for name, entry in header.items()}).encode()
    (folder / SHARDS[0].replace("3.", "9.")).write_bytes(len(text).to_bytes(8, "little") + text + data[8 + size :])
    assert "is stale" not in refused("inspect", folder)
    assert "shards of more than one model" in refused("reindex", folder)


def test_other_prefixes_have_their_own_index(folder: Path) -> None:
    """Shards of a diffusion model are indexed under their own name."""
    (folder / INDEX).unlink()
    for shard in SHARDS:
        (folder / shard).rename(folder / shard.replace("model", "diffusion_pytorch_model"))
    ok("reindex --in-place", folder)
    assert (folder / "diffusion_pytorch_model.safetensors.index.json").exists()


def test_loaders_look_for_one_index(folder: Path, tmp_path: Path) -> None:
    """Shards of any other prefix get the index that transformers looks for, and it finds them."""
    (folder / INDEX).unlink()
    for shard in SHARDS:
        (folder / shard).rename(folder / shard.replace("model", "weights"))
    ok("reindex", folder, "-o", tmp_path / "out")
    assert (tmp_path / "out" / INDEX).exists()
    (prediction,) = tieconv.inspect(tmp_path / "out", consumers="transformers>=5.4").consumers
    assert prediction.outcome == "tied"


def test_one_file_needs_no_index(model) -> None:
    """A single file, a lone file, a directory without weights."""
    single = model("llama-tied")
    assert "needs no index" in refused("reindex", single)
    assert "is a single file" in refused("reindex", single / "model.safetensors")
    (single / "model.safetensors").unlink()
    assert "holds no safetensors file" in refused("reindex", single)
    assert run("reindex", single / "nowhere").exit_code == 2


def test_what_a_strict_reader_refuses_is_carried_over(folder: Path, tmp_path: Path) -> None:
    """A repeated key, or a total that is no number: all else that the index says stays, digit for digit."""
    metadata = f'"total_parameters": {10**21 + 7}, "scale": 1.10, "huge": -0, "by": {{"tool": ["x", 1E5]}}'
    entries = json.dumps(ENTRIES)
    text = f'{{"kind": 2.50, "metadata": {{{metadata}, "total_size": NaN}}, "weight_map": {entries}, "kind": 2.5000}}'
    (folder / INDEX).write_text(text)
    document = plan("reindex", folder, "-o", tmp_path / "out")
    written = (tmp_path / "out" / INDEX).read_text()
    for fragment in (f'"total_parameters": {10**21 + 7},', '"scale": 1.10,', '"huge": -0,', "1E5", '"kind": 2.5000'):
        assert fragment in written
    rebuilt = json.loads(written)
    assert rebuilt["weight_map"] == ENTRIES
    assert rebuilt["metadata"]["total_size"] == json.loads(ORIGINAL)["metadata"]["total_size"]
    assert len(document["notes"]) == 1 and "reindex keeps all entries besides the map" in document["notes"][0]
    assert tieconv.inspect(tmp_path / "out").checkpoint.cautions == ()


@pytest.mark.parametrize("value", ["NaN", "-Infinity", "1e999", "9" * 5000, r'"\ud800"', '[{"a": NaN}]'])
def test_what_no_strict_reader_takes_is_named(folder: Path, value: str) -> None:
    """An entry that would make the new index unreadable is left out, and the plan names it; its neighbours stay."""
    original = json.loads(ORIGINAL)
    entries, total = json.dumps(original["weight_map"]), original["metadata"]["total_size"]
    metadata = f'{{"odd": {value}, "even": 2, "total_size": {total}}}'
    (folder / INDEX).write_text(f'{{"metadata": {metadata}, "weight_map": {entries}}}')
    notes = plan("reindex --in-place", folder)["notes"]
    assert json.loads((folder / INDEX).read_text())["metadata"] == {"even": 2, "total_size": total}
    assert any("reindex drops" in note and "metadata.odd" in note for note in notes)


def test_an_index_that_is_no_json(folder: Path) -> None:
    """The hint of every other command rebuilds it; `reindex` says that its metadata is not carried over."""
    (folder / INDEX).write_text(ORIGINAL[:-30])
    result = run("inspect", folder)
    assert result.exit_code == 2
    assert result.stderr.splitlines()[1] == f"hint: rebuild the index from the shards: tieconv reindex {folder}"
    (note,) = plan("reindex", folder)["notes"]
    assert "its metadata is lost" in note


def test_a_malformed_shard_is_unreadable(folder: Path) -> None:
    """A truncated shard is named."""
    (folder / SHARDS[2]).write_bytes((folder / SHARDS[2]).read_bytes()[:-8])
    assert SHARDS[2] in refused("reindex", folder)


# --- shards of torch --------------------------------------------------------------------------------------


@pytest.fixture
def torch_folder(model) -> Path:
    """The sharded fixture as older transformers saved it."""
    path = model("llama-tied-sharded")
    for source, shard in zip(SHARDS, TORCH_SHARDS, strict=True):
        torch.save(load_file(path / source), path / shard)
        (path / source).unlink()
    (path / INDEX).unlink()
    (path / TORCH_INDEX).write_text(ORIGINAL.replace("model-", "pytorch_model-").replace(".safetensors", ".bin"))
    return path


def read(folder: Path) -> dict[str, torch.Tensor]:
    """Every tensor by the index alone: from the shard that it names."""
    entries = json.loads((folder / TORCH_INDEX).read_text())["weight_map"]
    shards = {shard: torch.load(folder / shard, weights_only=True) for shard in set(entries.values())}
    return {name: shards[shard][name] for name, shard in entries.items()}


@pytest.mark.parametrize("content", [None, "{", '{"weight_map": {"model.norm.weight": "gone.bin"}, "metadata": {}}'])
def test_from_the_shards_alone(torch_folder: Path, tmp_path: Path, content: str | None) -> None:
    """Missing, malformed or wrong: transformers and `torch.load` find every tensor again."""
    before, judged = read(torch_folder), load("LlamaForCausalLM", torch_folder)
    first = json.loads((torch_folder / TORCH_INDEX).read_text())
    (torch_folder / TORCH_INDEX).unlink()
    if content is not None:
        (torch_folder / TORCH_INDEX).write_text(content)
    source = snapshot(torch_folder)
    ok("reindex --dry-run", torch_folder, "-o", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    ok("reindex", torch_folder, "-o", tmp_path / "out")
    assert snapshot(torch_folder) == source
    after = read(tmp_path / "out")
    assert after.keys() == before.keys() and all(torch.equal(after[name], before[name]) for name in before)
    loaded = load("LlamaForCausalLM", tmp_path / "out")
    assert differences(judged, loaded, shares_head=True) == [] and not loaded.missing
    metadata = json.loads((tmp_path / "out" / TORCH_INDEX).read_text())["metadata"]
    assert metadata == {"total_size": first["metadata"]["total_size"]}
    ok("reindex --in-place", torch_folder)
    assert snapshot(torch_folder) == snapshot(tmp_path / "out")
    assert tieconv.inspect(torch_folder).checkpoint.cautions == ()


def test_torch_tensors_in_two_shards(torch_folder: Path) -> None:
    """Equal values are one tensor, however they are strided; values that differ are nobody's to choose."""
    entries = json.loads((torch_folder / TORCH_INDEX).read_text())["weight_map"]
    name = next(name for name in entries if name.endswith("q_proj.weight"))
    second_shard = next(shard for shard in TORCH_SHARDS if shard != entries[name])
    value = torch.load(torch_folder / entries[name], weights_only=True)[name]
    stored = torch.load(torch_folder / second_shard, weights_only=True)
    transposed = value.t().contiguous().t()
    assert not transposed.is_contiguous()
    torch.save(stored | {name: transposed}, torch_folder / second_shard)
    assert "nothing to change" in plan("reindex", torch_folder)["summary"]
    torch.save(stored | {name: value + 1}, torch_folder / second_shard)
    sentence = refused("reindex", torch_folder)
    assert name in sentence and entries[name] in sentence and second_shard in sentence


def test_one_storage_counts_once(torch_folder: Path) -> None:
    """total_size as transformers counts it: two names of one storage once. An index that counts each stays right."""
    (torch_folder / TORCH_INDEX).unlink()
    first = torch.load(torch_folder / TORCH_SHARDS[0], weights_only=True)
    name, value = next(iter(first.items()))
    torch.save(first | {"twin.weight": first[name]}, torch_folder / TORCH_SHARDS[0])
    ok("reindex --in-place", torch_folder)
    index = json.loads((torch_folder / TORCH_INDEX).read_text())
    distinct = {key: tensor.nbytes for key, tensor in read(torch_folder).items() if key != "twin.weight"}
    assert index["metadata"]["total_size"] == sum(distinct.values())
    index["metadata"]["total_size"] += value.nbytes
    (torch_folder / TORCH_INDEX).write_text(json.dumps(index))
    assert "nothing to change" in plan("reindex", torch_folder)["summary"]


def test_torch_strays_come_along_or_are_left_out(torch_folder: Path, tmp_path: Path) -> None:
    """Other torch weights are listed and --prune leaves them out; what a trainer left is no weight and stays."""
    torch.save({"w": torch.zeros(1)}, torch_folder / "consolidated.00.pth")
    torch.save({"w": torch.zeros(1)}, torch_folder / "consolidated.01.pth")
    torch.save({"step": 1}, torch_folder / "optimizer.pt")
    strays = ["consolidated.00.pth", "consolidated.01.pth"]
    document = plan("reindex", torch_folder, "-o", tmp_path / "kept")
    assert document["notes"][0] == f"outside the index: {', '.join(strays)}; kept (--prune leaves them out)"
    document = plan("reindex --prune", torch_folder, "-o", tmp_path / "pruned")
    assert document["files_removed"] == strays
    assert not any((tmp_path / "pruned" / name).exists() for name in strays)
    assert (tmp_path / "pruned" / "optimizer.pt").exists()


def test_a_training_checkpoint_is_refused(torch_folder: Path) -> None:
    """Shards whose tensors lie under a key of a training state: no loader would find them by an index."""
    stored = torch.load(torch_folder / TORCH_SHARDS[0], weights_only=True)
    torch.save({"model": stored, "step": 3}, torch_folder / TORCH_SHARDS[0])
    assert TORCH_SHARDS[0] in refused("reindex", torch_folder)


MODELS = Path(__file__).parents[2] / "fixtures" / "models"
SHARDED = "llama-tied-sharded"


WRAPPERS = {
    "module.": "DistributedDataParallel",
    "_orig_mod.": "torch.compile",
    "module._orig_mod.": "DistributedDataParallel and torch.compile",
    "_fsdp_wrapped_module.": "FullyShardedDataParallel and activation checkpointing",
    "base_model.model.": "PEFT",
}


def wrapped(source: Path, folder: Path, prefix: str) -> Path:
    """A copy of a fixture whose tensors, and whose index, have other names."""
    # FSDP wraps the model and each layer; activation checkpointing wraps the layers once more.
    inside = f"layers.0.{prefix}_checkpoint_wrapped_module." if "fsdp" in prefix else "layers.0."

    def rename(name: str) -> str:
        return prefix + name.replace("layers.0.", inside)

    shutil.copytree(source, folder)
    for file in folder.glob("*.safetensors"):
        save_file({rename(name): value for name, value in load_file(file).items()}, file, {"format": "pt"})
    for index in folder.glob("*.index.json"):
        value = json.loads(index.read_text())
        value["weight_map"] = {rename(name): shard for name, shard in value["weight_map"].items()}
        index.write_text(json.dumps(value))
    return folder


@pytest.mark.sampled(5)
@pytest.mark.parametrize("prefix", WRAPPERS)
@pytest.mark.parametrize("name", ["llama-tied", "llama-duplicated", SHARDED])
def test_the_prefix_goes_and_the_model_loads(tmp_path: Path, name: str, prefix: str) -> None:
    """Weights and index get the names that transformers loads, and no byte of a tensor changes."""
    model = wrapped(MODELS / name, tmp_path / "model", prefix)
    (finding,) = [entry for entry in tieconv.inspect(model).findings if entry.rule == "TIE006"]
    assert f"{WRAPPERS[prefix]} left " in finding.message
    assert finding.remedy is not None and finding.remedy.safe
    assert "reindex" in finding.remedy.command and "--strip-prefix" in finding.remedy.command
    out = tmp_path / "out"
    ok("reindex --strip-prefix", model, "-o", out)
    assert ok("diff", out, MODELS / name).stdout.endswith("A and B compute the same function.\n")
    loaded, info = transformers.AutoModelForCausalLM.from_pretrained(out, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    expected = transformers.AutoModelForCausalLM.from_pretrained(MODELS / name)
    ids = torch.arange(8)[None]
    assert torch.equal(loaded(ids).logits, expected(ids).logits)


def test_ties_are_seen_through_the_prefix(tmp_path: Path) -> None:
    """The pair is compared byte for byte under the names that the file has."""
    model = wrapped(MODELS / "llama-duplicated", tmp_path / "model", "module.")
    evidence = tieconv.inspect(model)
    assert evidence.ties == ()
    (tie,) = evidence.wrapped_ties
    states = {member.name: str(member.state) for member in tie.members}
    assert states == {"module.model.embed_tokens.weight": "canonical", "module.lm_head.weight": "identical"}
    assert evidence.to_dict()["wrapped_ties"][0]["canonical"] == "module.model.embed_tokens.weight"
    assert "none known" not in ok("inspect", model).stdout
    assert "wrapped_ties" not in tieconv.inspect(MODELS / "llama-duplicated").to_dict()


def test_fix_strips_the_prefix_and_what_is_wrong_behind_it(tmp_path: Path) -> None:
    """`check --fix` renames, then drops the copy that the names had hidden."""
    model = wrapped(MODELS / "llama-duplicated", tmp_path / "model", "module._orig_mod.")
    out = tmp_path / "out"
    result = run("check --fix", model, "-o", out)
    assert result.exit_code in (0, 1), result.output
    assert "fixed: TIE006" in result.stderr
    assert "TIE006" not in run("check", out).stdout


def test_a_torch_file_too(tmp_path: Path) -> None:
    """`torch.save(ddp_model.state_dict())` is where the prefix comes from."""
    model = tmp_path / "model"
    shutil.copytree(MODELS / "llama-tied", model)
    tensors = load_file(model / "model.safetensors")
    (model / "model.safetensors").unlink()
    torch.save({f"module.{name}": value for name, value in tensors.items()}, model / "pytorch_model.bin")
    out = tmp_path / "out"
    ok("reindex --strip-prefix", model, "-o", out)
    after = torch.load(out / "pytorch_model.bin", map_location="cpu", weights_only=True)
    assert after.keys() == tensors.keys() and all(torch.equal(after[name], tensors[name]) for name in tensors)


@pytest.mark.parametrize("name", ["llama-tied", "bert-mlm"])
def test_a_model_without_a_wrapper_is_refused(name: str, tmp_path: Path) -> None:
    """One sentence, and nothing is written."""
    sentence = refused("reindex --strip-prefix", MODELS / name, "-o", tmp_path / "out")
    assert "no removable prefix of a training wrapper" in sentence
    assert list(tmp_path.iterdir()) == []


def test_options_that_do_not_go_together() -> None:
    """A second change of the index is a second run."""
    assert "--strip-prefix cannot be used with" in refused("reindex --strip-prefix --prune", MODELS / SHARDED)


def test_what_is_not_a_wrapper_stays() -> None:
    """A prefix that some names lack, names that would become one, and adapters are left alone."""
    assert unwrapping(["module.a", "b"]) == {}
    assert unwrapping(["_orig_mod.a", "a"]) == {}
    assert unwrapping(["module.module", "module.x._orig_mod"]) == {"module.module": "module", "module.x._orig_mod": "x"}
    assert unwrapping(["module"]) == unwrapping(["_orig_mod"]) == unwrapping([]) == {}
    assert unwrapping(["base_model.model.q.lora_A.weight", "base_model.model.q.base_layer.weight"]) == {}
    assert unwrapping(["base_model.model.head.modules_to_save.default.weight"]) == {}


STEPS = st.lists(
    st.sampled_from(["a", "b", "0", "module", "_orig_mod", "_fsdp_wrapped_module", "weight"]), min_size=1, max_size=5
)


@given(st.lists(STEPS.map(".".join), unique=True, max_size=6))
def test_no_two_tensors_become_one(names: list[str]) -> None:
    """Whatever the names, as many remain as there were, none is empty, and a second run finds nothing inside."""
    changed = unwrapping(names)
    after = [changed.get(name, name) for name in names]
    assert len(set(after)) == len(names) and all(after)
    assert all("_orig_mod" not in changed[name].split(".") for name in changed)
    assert not changed or wrappers_of(changed)
