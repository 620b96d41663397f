"""A tie of which the canonical name is missing (C08, C12), and copies written out under a flag that stays."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import save_model

from fixtures import zoo
from tests.cli.run import ok
from tests.cli.stored import config, edit, operations, plan, snapshot, tensors
from tests.reload.judge import differences, load

E, H = "model.embed_tokens.weight", "lm_head.weight"


@pytest.mark.parametrize(
    ("name", "kind", "canonical", "restored"),
    [
        ("llama-tied", "LlamaForCausalLM", E, H),
        ("gpt2-unprefixed", "GPT2LMHeadModel", "wte.weight", H),
        ("bart", "BartForConditionalGeneration", "model.shared.weight", "model.decoder.embed_tokens.weight"),
        ("t5", "T5ForConditionalGeneration", "shared.weight", "decoder.embed_tokens.weight"),
        ("qwen2-vl", "Qwen2VLForConditionalGeneration", E, H),
    ],
)
def test_retie_gives_the_name_back(model, tmp_path: Path, name: str, kind: str, canonical: str, restored: str) -> None:
    """Whatever member of the group is stored, its bytes get the name that every loader finds."""
    folder = model(name)
    before, meant = snapshot(folder), load(kind, folder)
    edit(folder, lambda stored: stored.update({restored: stored.pop(canonical)}))
    document = plan("retie", folder, "-o", tmp_path / "out")
    assert operations(document) == {restored: "RenameTensor"}
    assert differences(meant, load(kind, tmp_path / "out"), shares_head=meant.shares_head) == []
    assert tensors(tmp_path / "out").keys() == (tensors(folder).keys() - {restored}) | {canonical}
    assert config(tmp_path / "out").items() <= dict(config(folder)).items()
    assert before.keys() == snapshot(tmp_path / "out").keys()


def test_what_safetensors_save_model_writes(tmp_path: Path) -> None:
    """It keeps the alphabetically first name and notes the other in the metadata: both are put right."""
    built = zoo.build("LlamaForCausalLM", tie=True)
    folder = tmp_path / "model"
    built.save_pretrained(folder)
    save_model(built, str(folder / "model.safetensors"), {"format": "pt"})
    assert E not in tensors(folder) and H in tensors(folder)
    document = plan("retie", folder, "-o", tmp_path / "out")
    assert sorted(operations(document).values()) == ["RenameTensor", "SetMetadata"]
    assert load("LlamaForCausalLM", tmp_path / "out").shares_head


def test_an_inverted_shard(model, tmp_path: Path) -> None:
    """In shards too, with the index."""
    ok("convert --to safetensors", model("llama-tied-sharded"), "-o", tmp_path / "one")
    edit(tmp_path / "one", lambda stored: stored.update({H: stored.pop(E)}))
    ok("convert --to safetensors --max-shard-size 15KB", tmp_path / "one", "-o", tmp_path / "shards")
    ok("retie --in-place", tmp_path / "shards")
    assert E in tensors(tmp_path / "shards") and H not in tensors(tmp_path / "shards")
    assert ok("diff", tmp_path / "shards", tmp_path / "llama-tied-sharded").exit_code == 0


@pytest.mark.parametrize(
    ("name", "kind"),
    [("llama-tied-sharded", "LlamaForCausalLM"), ("bart", "BartForConditionalGeneration"),
     ("bert-mlm", "BertForMaskedLM"), ("t5", "T5ForConditionalGeneration"),
     ("qwen2-vl", "Qwen2VLForConditionalGeneration")],
)  # fmt: skip
def test_keep_flag_is_tied_to_every_loader(model, tmp_path: Path, name: str, kind: str) -> None:
    """Copies for consumers that ask for the name (C07); transformers still ties; done twice nothing changes."""
    folder = model(name)
    ok("untie --keep-flag", folder, "-o", tmp_path / "out")
    before, after = load(kind, folder), load(kind, tmp_path / "out")
    assert differences(before, after, shares_head=before.shares_head) == []
    assert (tmp_path / "out" / "config.json").read_bytes() == (folder / "config.json").read_bytes()
    assert operations(plan("untie --keep-flag", tmp_path / "out")) == {}
    ok("retie", tmp_path / "out", "-o", tmp_path / "back")
    assert snapshot(tmp_path / "back") == snapshot(folder)


def test_copies_are_spelled_as_the_file_is(model, tmp_path: Path) -> None:
    """A file without the base model's prefix gets none: transformers 4 would miss every other tensor."""
    folder = model("bart")
    edit(
        folder, lambda stored: [stored.update({name.removeprefix("model."): stored.pop(name)}) for name in list(stored)]
    )
    meant = load("BartForConditionalGeneration", folder)
    ok("untie", folder, "-o", tmp_path / "out")
    assert tensors(tmp_path / "out").keys() - tensors(folder).keys() == {
        "encoder.embed_tokens.weight", "decoder.embed_tokens.weight", H,
    }  # fmt: skip
    assert differences(meant, load("BartForConditionalGeneration", tmp_path / "out"), shares_head=False) == []
