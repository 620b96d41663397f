"""`tieconv convert`: the same tensors in other files, as huggingface_hub would split them, and back."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from huggingface_hub import split_torch_state_dict_into_shards
from hypothesis import given, settings, strategies as st
from safetensors import safe_open

import tieconv
from tests.cli.run import ok, refused, run
from tests.cli.stored import Tensors, configure, edit, operations, plan, same, snapshot, tensors
from tests.lazy import load_file, save_file, torch
from tests.patience import examples
from tests.reload.judge import differences, load

INDEX = "model.safetensors.index.json"


def weights(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.safetensors"))


@pytest.mark.parametrize("name", ["llama-tied", "llama-untied-sharded", "bert-mlm", "qwen2-vl"])
@pytest.mark.parametrize("limit", ["1KB", "15KB", "40KB"])
def test_there_and_back(model, tmp_path: Path, name: str, limit: str) -> None:
    """Shards of any size, then one file: the same tensors, and what ties stays tied."""
    folder = model(name)
    plan(f"convert --to safetensors --max-shard-size {limit}", folder, "-o", tmp_path / "shards")
    assert same(tensors(tmp_path / "shards"), tensors(folder))
    ok("convert --to safetensors", tmp_path / "shards", "-o", tmp_path / "one")
    assert weights(tmp_path / "one") == ["model.safetensors"] and not (tmp_path / "one" / INDEX).exists()
    assert same(tensors(tmp_path / "one"), tensors(folder))
    assert ok("diff", folder, tmp_path / "shards").exit_code == 0


@pytest.mark.parametrize("name", ["llama-tied", "bart"])
def test_transformers_loads_the_shards(model, tmp_path: Path, name: str) -> None:
    """The same logits, tables and sharing; no key missing or unexpected."""
    kind = {"llama-tied": "LlamaForCausalLM", "bart": "BartForConditionalGeneration"}[name]
    ok("convert --to safetensors --max-shard-size 20KB", model(name), "-o", tmp_path / "out")
    before, after = load(kind, tmp_path / name), load(kind, tmp_path / "out")
    assert differences(before, after, shares_head=before.shares_head) == []


def test_an_order_that_decides_is_told(model) -> None:
    """Without dtype in the config transformers 5 uses the first tensor's. transformers 4 keeps the table read last."""
    folder = model("t5")
    assert plan("convert --to torch", folder)["notes"] == []
    edit(folder, lambda stored: stored.update({"encoder.embed_tokens.weight": stored["shared.weight"].bfloat16()}))
    configure(folder, dtype=..., torch_dtype=...)
    (tables,) = plan("convert --to torch", folder)["notes"]
    assert "shared.weight, encoder.embed_tokens.weight differ, and transformers 4 keeps only the one" in tables
    ok("convert --to torch", folder, "-o", folder.with_name("order"))
    assert "another order of shared.weight" in run("diff", folder, folder.with_name("order")).stdout
    assert ok("diff", folder, folder).exit_code == 0
    edit(folder, lambda stored: stored.update({min(stored): stored[min(stored)].bfloat16()}))
    tables, types = plan("convert --to torch", folder)["notes"]
    assert "the tensors have the dtypes BF16, F32" in types
    configure(folder, dtype="float32")
    edit(folder, lambda stored: stored.update({"encoder.embed_tokens.weight": stored["shared.weight"].clone()}))
    assert plan("convert --to torch", folder)["notes"] == []


def test_metadata_that_a_torch_file_cannot_hold_is_named(model, tmp_path: Path, monkeypatch) -> None:
    """The plan lists the entries, and prints the settings with which `check` accepts the copies that it unmarks."""
    folder = model("llama-tied")
    ok("untie --keep-flag", folder, "-o", tmp_path / "kept-copy")
    dropped, advice = plan("convert --to torch", tmp_path / "kept-copy", "-o", tmp_path / "OUT")["notes"]
    assert dropped == "convert drops the metadata entry tieconv.keep: a torch file has no metadata"
    assert "no longer marks lm_head.weight" in advice
    monkeypatch.chdir(tmp_path)
    assert run("check", "OUT").exit_code == 1
    (tmp_path / "tieconv.toml").write_text(advice.partition("add this to tieconv.toml: ")[2])
    ok("check", "OUT")
    stored = tensors(folder)
    save_file(stored, folder / "model.safetensors", {"format": "pt", "step": "7", "author": "me"})
    (note,) = plan("convert --to torch", folder)["notes"]
    assert note == "convert drops the metadata entries author and step: a torch file has no metadata"


def test_marks_of_several_files_are_joined(model, tmp_path: Path) -> None:
    """Each shard marks its own copies. One file marks all of them."""
    folder = model("bart")
    ok("untie --keep-flag", folder, "-o", tmp_path / "marked")
    ok("convert --to safetensors --max-shard-size 10KB", tmp_path / "marked", "-o", tmp_path / "shards")
    marks: list[list[str]] = []
    for shard in (tmp_path / "shards").glob("*.safetensors"):
        stored = load_file(shard)
        own = sorted(name for name in stored if "embed_tokens" in name or name == "lm_head.weight")
        save_file(stored, shard, {"format": "pt", **({"tieconv.keep": json.dumps(own)} if own else {})})
        marks += [own] * bool(own)
    assert len(marks) > 1
    assert plan("convert --to safetensors", tmp_path / "shards", "-o", tmp_path / "one")["notes"] == []
    with safe_open(tmp_path / "one" / "model.safetensors", "pt") as file:
        assert json.loads(file.metadata()["tieconv.keep"]) == sorted(name for own in marks for name in own)


def test_it_splits_as_huggingface_hub_does(model, tmp_path: Path) -> None:
    """Greedy in file order: the same tensors in the same files, and the same index."""
    folder = model("gpt2-unprefixed")
    with safe_open(folder / "model.safetensors", "pt") as file:
        stored = {name: file.get_tensor(name) for name in file.offset_keys()}
    pattern = "model{suffix}.safetensors"
    split = split_torch_state_dict_into_shards(stored, max_shard_size="15KB", filename_pattern=pattern)
    ok("convert --to safetensors --max-shard-size 15KB", folder, "-o", tmp_path / "out")
    index = json.loads((tmp_path / "out" / INDEX).read_text())
    assert index["weight_map"] == split.tensor_to_filename
    assert index["metadata"] == split.metadata
    assert weights(tmp_path / "out") == sorted(split.filename_to_tensors)


TYPES = ("float32", "bfloat16", "float64", "uint8", "bool", "int64")


@st.composite
def state(draw: st.DrawFn) -> Tensors:
    """A few tensors of odd sizes and types, scalars and empty ones among them."""
    shapes = st.lists(st.integers(0, 7), max_size=3)
    text = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=6)
    tensors = {}
    for seed, name in enumerate(draw(st.lists(text, min_size=1, max_size=12, unique=True))):
        dtype, generator = getattr(torch, draw(st.sampled_from(TYPES))), torch.Generator().manual_seed(seed)
        raw = torch.randint(0, 2 if dtype is torch.bool else 256, draw(shapes), generator=generator)
        tensors[name] = raw.to(dtype)
    return tensors


@given(state(), st.integers(1, 400), st.integers(1, 400), st.integers(1, 400))
@settings(deadline=None, max_examples=examples(60))
def test_any_sharding_holds_the_same_tensors(values: Tensors, first: int, second: int, third: int) -> None:
    """Random tensors, three splits in a row (one in place): the same tensors, each file within its limit."""
    with tempfile.TemporaryDirectory() as scratch:
        folder, out = Path(scratch, "a"), Path(scratch, "b")
        folder.mkdir()
        save_file(values, folder / "model.safetensors", {"format": "pt", "note": "kept"})
        (folder / "notes.txt").write_text("comes along")
        tieconv.plan_convert("safetensors", folder, max_shard_size=first).execute(out)
        tieconv.plan_convert("safetensors", out, max_shard_size=second).execute(in_place=True)
        tieconv.plan_convert("safetensors", out, max_shard_size=third).execute(in_place=True)
        assert same(tensors(out), values)
        assert (out / "notes.txt").read_text() == "comes along"
        for file in out.glob("*.safetensors"):
            stored = load_file(file)
            total = sum(value.numel() * value.element_size() for value in stored.values())
            assert total <= third or len(stored) == 1
            with safe_open(file, "pt") as opened:
                assert opened.metadata() == {"format": "pt", "note": "kept"}
        assert len(weights(out)) == 1 or set(json.loads((out / INDEX).read_text())["weight_map"]) == set(values)
        assert tieconv.inspect(out).checkpoint.cautions == ()


def test_a_model_that_fits_stays(model, tmp_path: Path) -> None:
    """Nothing to change: every file is brought along."""
    document = plan("convert --to safetensors", model("llama-tied"), "-o", tmp_path / "out")
    assert "nothing to change" in document["summary"] and document["bytes_written"] == 0
    assert snapshot(tmp_path / "out") == snapshot(tmp_path / "llama-tied")


def test_in_place_removes_the_old_shards(model) -> None:
    """One directory, one layout: the old shards and their index go."""
    folder = model("llama-tied-sharded")
    before = tensors(folder)
    ok("convert --to safetensors --in-place", folder)
    assert set(snapshot(folder)) == {"config.json", "generation_config.json", "model.safetensors"}
    assert same(tensors(folder), before)


def test_total_parameters_is_kept(model, tmp_path: Path) -> None:
    """What the index says beyond sizes is kept; sizes are counted anew."""
    folder = model("llama-tied-sharded")
    ok("convert --to safetensors --max-shard-size 10KB", folder, "-o", tmp_path / "out")
    old, new = (json.loads((path / INDEX).read_text())["metadata"] for path in (folder, tmp_path / "out"))
    assert new == old


def test_a_file_that_the_config_names(model, tmp_path: Path) -> None:
    """The config must not be left to name a file that is gone; a file of the usual name stays, whoever names it."""
    folder = model("llama-tied")
    configure(folder, transformers_weights="model.safetensors")
    ok("convert --to safetensors", folder, "-o", tmp_path / "out")
    (folder / "model.safetensors").rename(folder / "weights.safetensors")
    configure(folder, transformers_weights="weights.safetensors")
    sentence = refused("convert --to safetensors", folder)
    assert "transformers_weights is weights.safetensors, but convert writes" in sentence


def test_a_name_that_is_taken(model) -> None:
    """A stray file where a shard is to be written is not overwritten."""
    folder = model("llama-tied-sharded")
    (folder / "old").mkdir()
    save_file({"x": torch.zeros(1)}, folder / "model-00001-of-00004.safetensors")
    sentence = refused("convert --to safetensors --max-shard-size 15KB", folder)
    assert "model-00001-of-00004.safetensors" in sentence


def test_a_lone_file_stays_one(model, tmp_path: Path) -> None:
    """A file in, a file out, whatever the limit."""
    file = model("llama-tied") / "model.safetensors"
    ok("convert --to safetensors --max-shard-size 1KB", file, "-o", tmp_path / "x.safetensors")
    assert same(load_file(tmp_path / "x.safetensors"), load_file(file))


@pytest.mark.parametrize("size", ["", "5", "0KB", "-1GB", "5 parsecs", "1e9"])
def test_sizes(model, size: str) -> None:
    """Sizes with a unit, or bytes; anything else is a usage error."""
    result = run("convert --to safetensors --max-shard-size", size, model("llama-tied"))
    assert result.exit_code == (0 if size == "5" else 2)


# --- torch -----------------------------------------------------------------------------------------------


def pickled(folder: Path) -> Tensors:
    """Every tensor of every torch file."""
    return {name: value for file in sorted(folder.glob("*.bin")) for name, value in torch.load(file).items()}


def to_torch(folder: Path, change: Callable[[Tensors], object] = lambda stored: None) -> Path:
    """The model of one file, saved by torch."""
    stored = load_file(folder / "model.safetensors")
    change(stored)
    (folder / "model.safetensors").unlink()
    torch.save(stored, folder / "pytorch_model.bin")
    return folder


def alias(stored: Tensors) -> None:
    stored["lm_head.weight"] = stored["model.embed_tokens.weight"]


def views(stored: Tensors) -> None:
    """A transposed tensor, a slice of a larger storage and an expanded one."""
    gate, up, norm = "model.layers.0.mlp.gate_proj.weight", "model.layers.0.mlp.up_proj.weight", "model.norm.weight"
    stored[gate] = stored[gate].T.contiguous().T
    stored[up] = torch.cat([torch.ones(5, 32), stored[up].float(), torch.ones(7, 32)]).bfloat16()[5:-7]
    stored[norm] = torch.ones(1, dtype=torch.bfloat16).expand(32)


@pytest.mark.parametrize("name", ["llama-tied", "llama-untied-sharded", "bert-mlm", "bart"])
@pytest.mark.parametrize("limit", ["15KB", "5GB"])
def test_torch_and_back(model, tmp_path: Path, name: str, limit: str) -> None:
    """safetensors to torch to safetensors: the same tensors, which torch itself reads in between."""
    folder = model(name)
    ok(f"convert --to torch --max-shard-size {limit}", folder, "-o", tmp_path / "torch")
    assert not weights(tmp_path / "torch")
    assert same(pickled(tmp_path / "torch"), tensors(folder))
    ok("convert --to safetensors", tmp_path / "torch", "-o", tmp_path / "back")
    assert same(tensors(tmp_path / "back"), tensors(folder))
    assert not list((tmp_path / "back").glob("*.bin*"))
    assert ok("diff", tmp_path / "torch", folder).exit_code == 0


def test_transformers_loads_what_came_from_torch(model, tmp_path: Path) -> None:
    """A tied torch file with both names: the table says which one stays; same logits, same sharing."""
    folder = to_torch(model("llama-tied"), alias)
    before = load("LlamaForCausalLM", folder)
    document = plan("convert --to safetensors", folder, "-o", tmp_path / "out")
    assert operations(document) == {"lm_head.weight": "DropTensor"}
    assert differences(before, load("LlamaForCausalLM", tmp_path / "out"), shares_head=True) == []


def test_an_alias_that_loaders_ask_for_becomes_a_tensor(model, tmp_path: Path) -> None:
    """With the flag false, or in modules that no table ties, each name is written out, and the plan says so."""
    key_weight, value_weight = "model.layers.0.self_attn.k_proj.weight", "model.layers.0.self_attn.v_proj.weight"
    both = {value_weight: key_weight, "lm_head.weight": "model.embed_tokens.weight"}
    folder = to_torch(model("llama-tied"), lambda stored: stored.update({n: stored[of] for n, of in both.items()}))
    configure(folder, tie_word_embeddings=False)
    document = plan("convert --to safetensors", folder, "-o", tmp_path / "out")
    assert operations(document) == {}
    assert [note.split()[2] for note in document["notes"]] == [value_weight, "lm_head.weight"]
    after = tensors(tmp_path / "out")
    assert after[key_weight].equal(after[value_weight])
    assert after["lm_head.weight"].equal(after["model.embed_tokens.weight"])


def test_views_are_written_out(model, tmp_path: Path) -> None:
    """Transposed, sliced and expanded views (C26, C27, C29) become the tensors that they stand for."""
    folder = to_torch(model("llama-tied"), views)
    ok("convert --to safetensors", folder, "-o", tmp_path / "out")
    assert same(tensors(tmp_path / "out"), pickled(folder))
    assert ok("diff", folder, tmp_path / "out").exit_code == 0


def test_a_transposed_alias_is_no_duplicate(model, tmp_path: Path) -> None:
    """The head as a transposed view of a square embedding: another tensor, written out (C26)."""
    folder = model("llama-tied")
    square = torch.randn(32, 32)
    torch.save({"a.weight": square, "b.weight": square.T, "c.weight": square[2:5]}, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    before = pickled(folder)
    ok("convert --to safetensors", folder, "-o", tmp_path / "out")
    assert same(tensors(tmp_path / "out"), before)


def test_torch_shards_keep_storages_together(model, tmp_path: Path) -> None:
    """Names of one storage stay in one shard, as views of it; bytes that nothing uses go."""
    folder = to_torch(model("llama-tied"), lambda stored: (alias(stored), views(stored)))
    ok("convert --to torch --max-shard-size 15KB", folder, "-o", tmp_path / "out")
    assert same(pickled(tmp_path / "out"), pickled(folder))
    index = json.loads((tmp_path / "out" / "pytorch_model.bin.index.json").read_text())
    assert index["weight_map"]["lm_head.weight"] == index["weight_map"]["model.embed_tokens.weight"]
    shard = torch.load(tmp_path / "out" / index["weight_map"]["lm_head.weight"])
    assert shard["lm_head.weight"].data_ptr() == shard["model.embed_tokens.weight"].data_ptr()
    storages = [value.untyped_storage() for value in pickled(tmp_path / "out").values()]
    sizes = {storage.data_ptr(): storage.nbytes() for storage in storages}
    assert index["metadata"]["total_size"] == sum(sizes.values())


@given(state(), st.integers(1, 400))
@settings(deadline=None, max_examples=40)
def test_any_tensors_survive_torch(values: Tensors, limit: int) -> None:
    """Random tensors to torch shards and back: the same tensors, and torch reads the shards."""
    with tempfile.TemporaryDirectory() as scratch:
        folder, middle, back = (Path(scratch, name) for name in "abc")
        folder.mkdir()
        save_file(values, folder / "model.safetensors", {"format": "pt"})
        tieconv.plan_convert("torch", folder, max_shard_size=limit).execute(middle)
        assert same(pickled(middle), values)
        tieconv.plan_convert("safetensors", middle, max_shard_size=limit).execute(back)
        assert same(tensors(back), values)


def test_a_dtype_that_torch_lacks(model, tmp_path: Path) -> None:
    """Four-bit floats have no torch storage: refused, and nothing is written."""
    folder = model("llama-tied")
    header = b'{"x":{"dtype":"F6_E2M3","shape":[4],"data_offsets":[0,3]}}'
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(3))
    assert "F6_E2M3" in refused("convert --to torch", folder, "-o", tmp_path / "out", after_plan=True)
    assert not (tmp_path / "out").exists()


def test_a_file_that_is_in_the_way(model) -> None:
    """A torch file beside the safetensors one is somebody's: it is not overwritten."""
    folder = model("llama-tied")
    torch.save({}, folder / "pytorch_model.bin")
    assert "as torch" in refused("convert --to torch", folder)


def test_a_lone_file_changes_its_suffix(model, tmp_path: Path) -> None:
    """The format is in the name: OUT has to say the same, and in place there is no room for it."""
    file = model("llama-tied") / "model.safetensors"
    ok("convert --to torch", file, "-o", tmp_path / "x.bin")
    assert same(torch.load(tmp_path / "x.bin"), load_file(file))
    assert "does not end in .bin" in refused("convert --to torch", file, "-o", tmp_path / "y.safetensors")
    assert "a suffix of another format" in refused("convert --to torch --in-place", file)
    assert load_file(file)
