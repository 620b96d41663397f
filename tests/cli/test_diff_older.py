"""`tieconv diff` of models that transformers 4 and 5 take apart differently."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import tieconv
from fixtures import zoo
from tests.cli.run import run
from tests.cli.stored import configure, edit

DECODER, ENCODER = "model.decoder.embed_tokens.weight", "model.encoder.embed_tokens.weight"
HEAD = "model.decoder.output_projection.weight"
TABLES = (DECODER, ENCODER, HEAD)
# fmt: off
SIZES = {"src_vocab_size": 40, "tgt_vocab_size": 40, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1,
         "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
# fmt: on
USED_4 = {True: {ENCODER}, False: {ENCODER, HEAD}}
"""Of three stored tables those that 4.57.6 and 4.48.3 use, by the flag; tests/families/older.json has the record."""


def fsmt(folder: Path, tied: bool) -> Path:
    """A model whose three tables are stored and equal, each a tensor of its own; token 5 is at 82 of each."""
    torch.manual_seed(0)
    config = transformers.FSMTConfig(langs=["a", "b"], **SIZES, tie_word_embeddings=tied)
    transformers.FSMTForConditionalGeneration(config).save_pretrained(folder)
    edit(folder, lambda values: values.update({name: values[DECODER].clone() for name in TABLES}))
    return folder


def nudged(source: Path, folder: Path, *names: str) -> Path:
    shutil.copytree(source, folder)
    edit(folder, lambda values: [values[name].view(-1)[82].add_(1) for name in names])
    return folder


def same(a: Path, b: Path) -> tuple[bool, dict[str, Any]]:
    result = run("diff --json", a, b)
    document = json.loads(result.stdout)
    assert result.exit_code == (0 if document["same_function"] else 1)
    assert run("diff", b, a).exit_code == result.exit_code
    return document["same_function"], document


def logits(folder: Path) -> torch.Tensor:
    ids = torch.arange(3, 11)[None]
    model = transformers.FSMTForConditionalGeneration.from_pretrained(folder).eval()
    with torch.no_grad():
        scores: torch.Tensor = model(input_ids=ids, decoder_input_ids=ids.flip(1)).logits
    return scores


@pytest.mark.sampled(3)
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("changed", [names for n in (1, 2) for names in itertools.combinations(TABLES, n)])
def test_each_table_of_fsmt(tmp_path: Path, changed: tuple[str, ...], tied: bool) -> None:
    """A table that a loader uses makes another model: transformers 5 keeps all three, 4 keeps what its record says."""
    a = fsmt(tmp_path / "a", tied)
    b = nudged(a, tmp_path / "b", *changed)
    assert same(a, Path(shutil.copytree(a, tmp_path / "copy")))[0]
    assert not torch.equal(logits(a), logits(b))
    equal, document = same(a, b)
    assert not equal
    loaders = {loader for entry in document["tensors"]["different"] for loader in entry["loaders"]}
    assert loaders == {"transformers 5"} | ({"transformers 4"} if USED_4[tied] & set(changed) else set())


@pytest.mark.parametrize("changed", TABLES)
def test_a_table_beside_one_that_differs_already(tmp_path: Path, changed: str) -> None:
    """The encoder's table is what a tied model takes in transformers 4: no other hides a change of it."""
    a = nudged(fsmt(tmp_path / "first", True), tmp_path / "a", ENCODER)
    equal, document = same(a, nudged(a, tmp_path / "b", changed))
    assert not equal
    loaders = {loader for entry in document["tensors"]["different"] for loader in entry["loaders"]}
    assert ("transformers 4" in loaders) is (changed == ENCODER)


def test_what_transformers_5_saves_of_a_tied_fsmt(tmp_path: Path) -> None:
    """It keeps the decoder's table, and 4 looks for the encoder's: the two files are one model in 5 alone."""
    a = fsmt(tmp_path / "a", True)
    b = Path(shutil.copytree(a, tmp_path / "b"))
    edit(b, lambda values: [values.pop(name) for name in (ENCODER, HEAD)])
    assert torch.equal(logits(a), logits(b))
    equal, document = same(a, b)
    assert not equal
    assert "left without values" in " ".join(document["reasons"])
    c = Path(shutil.copytree(a, tmp_path / "c"))
    edit(c, lambda values: [values.pop(name) for name in (DECODER, HEAD)])
    assert torch.equal(logits(a), logits(c)) and same(a, c)[0]


def test_retying_fsmt_says_what_transformers_4_finds(tmp_path: Path) -> None:
    """The name that transformers 5 keeps is not the one that 4 looks for: the plan says so, and diff too."""
    a = fsmt(tmp_path / "a", True)
    result = run("retie", a, "-o", tmp_path / "out")
    assert result.exit_code == 0
    output = " ".join(result.stderr.split())
    assert f"transformers 4 reads the tied values only from {ENCODER}, which the plan leaves out" in output
    assert not same(a, tmp_path / "out")[0]
    assert "review first" not in run("untie", a).stdout


def test_a_head_that_transformers_4_alone_ties(tmp_path: Path) -> None:
    """Luke's head is its own in transformers 5; in 4 the flag decides, so a change of it is no formality."""
    zoo.build("LukeForMaskedLM", tie=False).save_pretrained(tmp_path / "a")
    configure(tmp_path / "a", tie_word_embeddings=True)
    result = run("set-tie false", tmp_path / "a", "-o", tmp_path / "b")
    assert result.exit_code == 0 and "transformers 4 loads lm_head.decoder.weight with the values of luke." in " ".join(
        result.stderr.split()
    )
    equal, document = same(tmp_path / "a", tmp_path / "b")
    assert not equal and {loader for entry in document["tensors"]["different"] for loader in entry["loaders"]} == {
        "transformers 4"
    }
    entries = tieconv.inspect(tmp_path / "a", consumers="transformers").consumers
    assert [str(entry.outcome) for entry in entries] == ["unknown", "unknown", "untied", "untied"]


@pytest.mark.parametrize("verb", ["untie", "set-tie false"])
def test_levels_that_the_versions_read_otherwise(tmp_path: Path, verb: str) -> None:
    """transformers 5 reads the top level, 4 the nested one: where that says tied, 4 begins to use the head."""
    zoo.build("Idefics3ForConditionalGeneration", tie=False).save_pretrained(tmp_path / "a")
    values = json.loads((tmp_path / "a" / "config.json").read_text())
    configure(
        tmp_path / "a", tie_word_embeddings=False, text_config=values["text_config"] | {"tie_word_embeddings": True}
    )
    result = run(verb, tmp_path / "a", "-o", tmp_path / "b")
    assert result.exit_code == 0
    output = " ".join(result.stderr.split())
    assert "transformers 5 uses it. With the new config, transformers 4 uses it too" in output
    assert not same(tmp_path / "a", tmp_path / "b")[0]
    again = run(verb, tmp_path / "b")
    assert "nothing to change" in again.stdout and "uses it too" not in again.stdout + again.stderr


def test_a_name_that_one_version_does_not_know(models: Path, tmp_path: Path) -> None:
    """A head beside names without the prefix: transformers 5 reads it, 4 refuses the file."""
    a = Path(shutil.copytree(models / "gpt2-unprefixed", tmp_path / "a"))
    b = Path(shutil.copytree(a, tmp_path / "b"))
    values = load_file(b / "model.safetensors")
    save_file(values | {"lm_head.weight": values["wte.weight"].clone()}, b / "model.safetensors", {"format": "pt"})
    equal, document = same(a, b)
    assert not equal and "lm_head.weight, and none of its names starts with transformer." in " ".join(
        document["reasons"]
    )


def test_two_files_that_one_version_refuses(tmp_path: Path) -> None:
    """transformers 4 makes no model of either and stops at other names: what transformers 5 reads decides."""
    a = tmp_path / "a"
    zoo.build("BertForMaskedLM", tie=True).save_pretrained(a)
    values = {name.removeprefix("bert."): value for name, value in load_file(a / "model.safetensors").items()}
    save_file(values, a / "model.safetensors", {"format": "pt"})
    assert run("untie", a, "-o", tmp_path / "b").exit_code == 0
    assert same(a, tmp_path / "b")[0]
    changed = nudged(a, tmp_path / "c", "embeddings.word_embeddings.weight")
    equal, document = same(changed, tmp_path / "b")
    assert not equal and {loader for entry in document["tensors"]["different"] for loader in entry["loaders"]} == {
        "transformers 5"
    }
