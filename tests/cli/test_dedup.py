"""`tieconv dedup`: what loaders restore goes, what they ask for stays and is told."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import tieconv
from tests.cli.run import ok, refused, run
from tests.cli.stored import config, configure, edit, operations, plan, same, snapshot, tensors
from tests.reload.judge import differences, load

E, H = "model.embed_tokens.weight", "lm_head.weight"
PROJECTIONS = ("model.layers.0.self_attn.k_proj.weight", "model.layers.0.self_attn.v_proj.weight")


def test_a_declared_copy_goes(model, tmp_path: Path) -> None:
    """The head of a tied model is restored by every loader: same logits, same sharing, config untouched."""
    folder = model("llama-duplicated")
    assert operations(plan("dedup", folder, "-o", tmp_path / "out")) == {H: "DropTensor"}
    assert (tmp_path / "out" / "config.json").read_bytes() == (folder / "config.json").read_bytes()
    before, after = load("LlamaForCausalLM", folder), load("LlamaForCausalLM", tmp_path / "out")
    assert differences(before, after, shares_head=True) == []
    assert operations(plan("dedup", tmp_path / "out")) == {}


def test_every_name_of_a_group_goes(model, tmp_path: Path) -> None:
    """BART with four equal copies, and BERT with two biases, keep the canonical ones."""
    ok("untie --keep-flag", model("bart"), "-o", tmp_path / "bart4")
    ok("dedup", tmp_path / "bart4", "-o", tmp_path / "out")
    assert snapshot(tmp_path / "out") == snapshot(tmp_path / "bart")
    ok("untie --keep-flag", model("bert-mlm"), "-o", tmp_path / "bert2")
    ok("dedup --in-place", tmp_path / "bert2")
    assert snapshot(tmp_path / "bert2") == snapshot(tmp_path / "bert-mlm")


def test_what_is_declared_apart_stays(model) -> None:
    """With the flag false each loader asks for the head by name."""
    folder = model("llama-duplicated")
    configure(folder, tie_word_embeddings=False)
    document = plan("dedup", folder)
    assert operations(document) == {}
    assert document["notes"] == [f"kept: {H}, LlamaForCausalLM reads it as a separate tensor while the flag is false"]


def test_a_duplicate_that_is_no_tie_stays(model) -> None:
    """Equal tensors of other modules are found anywhere and named, never dropped (C44)."""
    folder = model("llama-tied")
    edit(folder, lambda stored: stored.update({PROJECTIONS[1]: stored[PROJECTIONS[0]].clone()}))
    document = plan("dedup", folder)
    assert operations(document) == {}
    [note] = document["notes"]
    assert note == f"kept: {PROJECTIONS[1]}, equal to {PROJECTIONS[0]}: loaders read each by its name"


def test_a_flag_that_transformers_4_reads_as_false(model) -> None:
    """Tied for transformers 5 alone: dropping the head would leave it random in 4."""
    folder = model("qwen2-vl")
    edit(folder, lambda stored: stored.update({H: stored[E].clone()}))
    values = config(folder)
    values["text_config"]["tie_word_embeddings"] = False
    configure(folder, **values)
    document = plan("dedup", folder)
    assert operations(document) == {}
    assert "transformers 4 reads the flag as false" in document["notes"][0]


def test_a_null_is_no_absence(model, tmp_path: Path) -> None:
    """transformers 4 takes a null as false, whatever the class's default: there the head is a tensor of its own."""
    ok("untie --keep-flag", model("gpt2-unprefixed"), "-o", tmp_path / "null")
    configure(tmp_path / "null", tie_word_embeddings=None)
    for line in ("dedup", "convert --to safetensors --max-shard-size 10KB"):
        assert "DropTensor" not in operations(plan(line, tmp_path / "null")).values()
    ok("set-tie true", tmp_path / "null", "-o", tmp_path / "kept")
    assert ok("diff", tmp_path / "null", tmp_path / "kept").exit_code == 0
    edit(tmp_path / "null", lambda stored: stored.pop(H))
    assert run("diff", tmp_path / "null", tmp_path / "kept").exit_code == 1


def test_t5_with_its_flag_false(model) -> None:
    """transformers 5 ties T5 whatever the flag says, transformers 4 does not."""
    folder = model("t5")
    edit(folder, lambda stored: stored.update({H: stored["shared.weight"].clone()}))
    assert operations(plan("dedup", folder)) == {H: "DropTensor"}
    configure(folder, tie_word_embeddings=False)
    assert operations(plan("dedup", folder)) == {}


def test_a_near_copy_stays(model) -> None:
    """One bit is enough."""
    folder = model("llama-diverged")
    assert operations(plan("dedup", folder)) == {}


def test_copies_that_hold_a_nan_are_one(model, tmp_path: Path) -> None:
    """Equal is equal in bytes."""
    folder = model("llama-duplicated")

    def poison(stored) -> None:
        stored[E][0, 0] = float("nan")
        stored[H] = stored[E].clone()

    edit(folder, poison)
    assert operations(plan("dedup", folder, "-o", tmp_path / "out")) == {H: "DropTensor"}
    assert load("LlamaForCausalLM", tmp_path / "out").shares_head


def test_an_empty_placeholder_goes(model, tmp_path: Path) -> None:
    """C32: ZeRO leaves a tensor without elements in the place of a tied head."""
    folder = model("llama-tied")
    edit(folder, lambda stored: stored.update({H: torch.zeros(0, dtype=torch.bfloat16)}))
    document = plan("dedup", folder, "-o", tmp_path / "out")
    assert operations(document) == {H: "DropTensor"}
    assert load("LlamaForCausalLM", tmp_path / "out").shares_head
    configure(folder, tie_word_embeddings=False)
    document = plan("dedup", folder)
    assert operations(document) == {} and "which is empty" in document["notes"][0]


def test_an_inverted_tie_is_left_to_retie(model) -> None:
    """Without the canonical name the copies are all that transformers 4 has."""
    folder = model("bart")
    matrix = tensors(folder)["model.shared.weight"]

    def invert(stored) -> None:
        stored.pop("model.shared.weight")
        stored |= {H: matrix.clone(), "model.encoder.embed_tokens.weight": matrix.clone()}

    edit(folder, invert)
    document = plan("dedup", folder)
    assert operations(document) == {}
    assert "tieconv retie" in document["notes"][0]


def test_an_unknown_architecture_keeps_everything(model) -> None:
    """A guess drops nothing; named pairs are no guess."""
    folder = model("llama-duplicated")
    configure(folder, architectures=["NovelForCausalLM"], model_type="novel")
    assert operations(plan("dedup", folder)) == {}
    assert operations(plan(f"dedup --embed {E} --head {H}", folder)) == {H: "DropTensor"}


def test_an_ambiguous_layout_is_refused(model) -> None:
    """As everywhere."""
    folder = model("llama-duplicated")
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-00001-of-00002.safetensors"}}')
    assert "the directory holds both" in refused("dedup", folder)


@pytest.mark.parametrize("layout", ["single", "sharded"])
def test_python_api(model, tmp_path: Path, layout: str) -> None:
    """The same plan as a function, in both layouts."""
    name = "llama-tied" if layout == "single" else "llama-tied-sharded"
    ok("untie --keep-flag", model(name), "-o", tmp_path / "copies")
    assert tieconv.plan_dedup(tmp_path / "copies").execute(tmp_path / "out").verified
    assert snapshot(tmp_path / "out") == snapshot(tmp_path / name)


# --- torch -----------------------------------------------------------------------------------------------


def saved(model, change) -> Path:
    """A tied Llama as torch saved it after ``change``."""
    folder = model("llama-tied")
    stored = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    change(stored)
    torch.save(stored, folder / "pytorch_model.bin")
    return folder


def storages(stored) -> dict[int, int]:
    """Bytes of each storage, by its address."""
    return {value.untyped_storage().data_ptr(): value.untyped_storage().nbytes() for value in stored.values()}


def test_torch_stores_copies_once(model, tmp_path: Path) -> None:
    """Every name stays and one storage serves all: tied names, and copies that no loader would restore."""

    def copies(stored) -> None:
        stored[H] = stored[E].clone()
        stored[PROJECTIONS[1]] = stored[PROJECTIONS[0]].clone()

    folder = saved(model, copies)
    shared = {H: "ShareTensor", PROJECTIONS[1]: "ShareTensor"}
    assert operations(plan("dedup", folder, "-o", tmp_path / "out")) == shared
    before, after = (torch.load(path / "pytorch_model.bin") for path in (folder, tmp_path / "out"))
    assert same(before, after)
    assert after[H].data_ptr() == after[E].data_ptr()
    assert after[PROJECTIONS[0]].data_ptr() == after[PROJECTIONS[1]].data_ptr()
    assert (
        sum(storages(before).values()) - sum(storages(after).values()) == after[E].nbytes + after[PROJECTIONS[0]].nbytes
    )
    assert operations(plan("dedup", tmp_path / "out")) == {}


def test_torch_slack_is_freed(model, tmp_path: Path) -> None:
    """C28: a slice drags its whole storage along; the bytes that no tensor uses go, overlapping views stay views."""

    def slack(stored) -> None:
        big = torch.zeros(5000, 32, dtype=torch.bfloat16)
        big[3:51] = stored["model.layers.0.mlp.up_proj.weight"]
        stored["model.layers.0.mlp.up_proj.weight"] = big[3:51]
        second = torch.randn(100, 32).bfloat16()
        stored["model.layers.0.mlp.gate_proj.weight"] = second[40:88]
        stored["model.layers.1.mlp.gate_proj.weight"] = second[30:78]

    folder = saved(model, slack)
    document = plan("dedup", folder, "-o", tmp_path / "out")
    assert sorted(operations(document).values()) == ["TrimStorage", "TrimStorage"]
    before, after = (torch.load(path / "pytorch_model.bin") for path in (folder, tmp_path / "out"))
    assert same(before, after)
    assert sum(storages(before).values()) - sum(storages(after).values()) == (5000 - 48 + 100 - 58) * 64
    assert (
        differences(load("LlamaForCausalLM", folder), load("LlamaForCausalLM", tmp_path / "out"), shares_head=True)
        == []
    )


def test_torch_shards_cannot_share(model, tmp_path: Path) -> None:
    """Across files a copy goes where loaders restore it, else it stays and is told."""

    def copies(stored) -> None:
        stored[PROJECTIONS[1]] = stored[PROJECTIONS[0]].clone()
        stored[H] = stored[E].clone()

    folder = saved(model, copies)
    ok("convert --to torch --max-shard-size 1KB", folder, "-o", tmp_path / "shards")
    document = plan("dedup", tmp_path / "shards", "-o", tmp_path / "out")
    assert operations(document) == {H: "DropTensor"}
    assert PROJECTIONS[1] in document["notes"][0] and "two files" in document["notes"][0]
