"""Damaged models, and what transformers makes of them once every recommended command was followed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cases.chains import chains
from tests.lazy import load_file, save_file, torch
from tests.reload.judge import differences, load, save
from tests.slow import fast_only

KINDS = {
    "LlamaForCausalLM": ("model.embed_tokens.weight", "lm_head.weight"),
    "GemmaForCausalLM": ("model.embed_tokens.weight", "lm_head.weight"),
    "GPT2LMHeadModel": ("transformer.wte.weight", "lm_head.weight"),
    "BertForMaskedLM": ("bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"),
    "T5ForConditionalGeneration": ("shared.weight", "lm_head.weight"),
}
Tensors = "dict[str, torch.Tensor]"
Damage = Callable[[Tensors, str, str], object]


def _copied(tensors: Tensors, embed: str, head: str) -> None:
    tensors[head] = tensors[embed].clone()


def _moved(tensors: Tensors, embed: str, head: str) -> None:
    tensors[head] = tensors.pop(embed)


def _placeholder(tensors: Tensors, embed: str, head: str) -> None:
    tensors[head] = torch.zeros(0)


def _zero_bias(tensors: Tensors, embed: str, head: str) -> None:
    tensors["lm_head.bias"] = torch.zeros(tensors[embed].shape[0])


DAMAGES: dict[str, Damage] = {
    "a redundant copy": _copied,
    "the head in place of the embedding": _moved,
    "a placeholder": _placeholder,
    "a bias that the class lacks": _zero_bias,
}


def damaged(name: str, folder: Path, damage: Damage | None, layout: str = "single", **config: object) -> Path:
    """A tied model whose tensors, and then its config, are changed."""
    save(name, folder, layout, tie=True)
    if damage is not None:
        tensors = load_file(folder / "model.safetensors")
        damage(tensors, *KINDS[name])
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **config}, indent=2))
    return folder


def judge(name: str, right: Path, folder: Path, work: Path) -> int:
    """Every way through the commands ends in a model that loads whole and computes what ``right`` computes."""
    before, ways = load(name, right), 0
    for trail, end, _ in chains(folder, work):
        ways += bool(trail)
        after = load(name, end)
        assert differences(before, after, shares_head=None) == [], trail
        assert not after.missing and not after.unexpected, trail
    return ways


WITH_BIAS = "BertForMaskedLM"


@pytest.mark.parametrize(
    ("name", "damage"),
    fast_only(
        [(name, damage) for name in KINDS for damage in DAMAGES if (name, DAMAGES[damage]) != (WITH_BIAS, _zero_bias)],
        ["LlamaForCausalLM", ("BertForMaskedLM", "a redundant copy"), ("T5ForConditionalGeneration", "a placeholder")],
    ),
)
def test_a_damaged_file_is_brought_back(name: str, damage: str, tmp_path: Path) -> None:
    """The logits are bit for bit those of the model before the damage."""
    right = save(name, tmp_path / "right", "single", tie=True)
    folder = damaged(name, tmp_path / "model", DAMAGES[damage])
    assert judge(name, right, folder, tmp_path) >= 1


@pytest.mark.parametrize(
    "name", fast_only([name for name in KINDS if name != "T5ForConditionalGeneration"], ["GemmaForCausalLM"])
)
def test_a_flag_that_leaves_the_head_random(name: str, tmp_path: Path) -> None:
    """Of a model declared untied that stores no head the commands make one with the logits of the tied model."""
    right = save(name, tmp_path / "right", "single", tie=True)
    folder = damaged(name, tmp_path / "model", None, tie_word_embeddings=False)
    assert judge(name, right, folder, tmp_path) >= 1


@pytest.mark.parametrize("name", fast_only(KINDS, ["GPT2LMHeadModel", "BertForMaskedLM"]))
def test_a_head_of_its_own_in_a_tied_model(name: str, tmp_path: Path) -> None:
    """What transformers 5 computes with a head of its own is what it computes afterwards."""

    def diverged(tensors: Tensors, embed: str, head: str) -> None:
        tensors[head] = tensors[embed] + 1

    folder = damaged(name, tmp_path / "model", diverged)
    judge(name, folder, folder, tmp_path)


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "GPT2LMHeadModel"])
def test_a_lost_index(name: str, tmp_path: Path) -> None:
    """Shards without an index get one."""
    right = save(name, tmp_path / "right", "single", tie=True)
    folder = damaged(name, tmp_path / "model", None, layout="sharded")
    (folder / "model.safetensors.index.json").unlink()
    assert judge(name, right, folder, tmp_path) == 1
