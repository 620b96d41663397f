"""No input makes a prediction fail, and a loader without an answer names the reason in one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import tieconv
import tieconv as api
from fixtures.gguf_bytes import gguf
from fixtures.hostile import write_corpus
from tests.checks.fixtures.model import (
    BERT,
    GEMMA3,
    HEAD,
    LLAMA,
    NESTED_EMBED,
    Config,
    Tensors,
    bert,
    llama,
    matrix,
    save,
    weights,
)
from tests.loops import case as in_case, fresh
from tieconv.errors import TieconvError
from tieconv.loaders.registry import CONSUMERS

LARGE = {"file-many"}
VALUES = (None, True, False, 0, 1, "true", "", [], [True], {}, {"a": []}, 1e308)


@pytest.mark.slow
def test_the_corpus(tmp_path: Path) -> None:
    """Each file of the corpus is refused by a sentence, or each loader says something printable of it."""
    answered = 0
    for case in write_corpus(tmp_path):
        if case.skip or case.name in LARGE:
            continue
        try:
            found = tieconv.inspect(case.path, consumers="all").consumers
        except TieconvError:
            continue
        answered += 1
        assert len(found) == len(CONSUMERS)
        assert all(prediction.detail.isprintable() for prediction in found)
    assert answered >= 50


def test_any_value_of_the_flag(tmp_path: Path) -> None:
    """A flag that is no boolean, and other keys of a wrong type, give an answer from each loader."""
    for value in VALUES:
        for config in [LLAMA, BERT, GEMMA3]:
            with in_case(config["model_type"], value):
                folder = fresh(tmp_path)
                tensors = {**llama(head=matrix(seed=1)), **bert(), NESTED_EMBED: matrix()}
                changed = {
                    **config,
                    "tie_word_embeddings": value,
                    "dtype": value,
                    "vocab_size": value,
                    "text_config": value,
                }
                found = tieconv.inspect(save(folder / "model", changed, tensors), consumers="all").consumers
                assert len(found) == len(CONSUMERS)


@pytest.mark.parametrize("kind", ["LlamaForCausalLM", "PhiForCausalLM", "MambaForCausalLM"])
@pytest.mark.parametrize("flag", [True, False])
@pytest.mark.parametrize("side", ["embedding", "head", "both"])
def test_tables_that_are_scalars(kind: str, flag: bool, side: str, tmp_path: Path) -> None:
    """A scalar has no rows: every loader still has an answer."""
    embedding = "backbone.embeddings.weight" if kind[0] == "M" else "model.embed_tokens.weight"
    config = {"architectures": [kind], "model_type": kind[:-11].lower(), "tie_word_embeddings": flag, "vocab_size": 8}
    shapes = {embedding: "embedding", "lm_head.weight": "head"}
    tensors = {name: np.ones(() if side in (part, "both") else (8, 4), np.float32) for name, part in shapes.items()}
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    assert all(entry.detail for entry in tieconv.inspect(folder, consumers="all").consumers)


LOADERS = ("transformers", "vllm", "mlx-lm")


def of(name: str, kind: str, **more: object) -> Config:
    return {"architectures": [name], "model_type": kind, **more}


CODES: Tensors = {**llama(), "lm_head.qweight": matrix(2, 2).view("<u4"), "lm_head.scales": matrix(2, 2)}
REASONS: dict[str, tuple[Config | None, Tensors]] = {
    "error: there is no config.json next to the weights": (None, llama()),
    "unknown: the architecture has no output head by design": (of("ElectraForPreTraining", "electra"), llama()),
    "unknown: the file stores the input embedding as several tensors": (
        of("Molmo2ForConditionalGeneration", "molmo2"),
        llama(),
    ),
    f"unknown: {HEAD} is quantised, and tieconv has no measurement of that": (of("LlamaForCausalLM", "llama"), CODES),
}
APART_IN_5 = {
    "ReformerModelWithLMHead": ("reformer", "reformer.embeddings.word_embeddings.weight", "lm_head.decoder.weight"),
    "xLSTMForCausalLM": ("xlstm", "backbone.embeddings.weight", "lm_head.weight"),
}
"""Classes that tie their head in transformers 4 alone: the type, the embedding and the head."""


def answers(path: Path, loaders: tuple[str, ...] = LOADERS) -> set[str]:
    found = api.inspect(path, consumers=",".join(loaders)).consumers
    assert {one.name for one in found} == set(loaders)
    return {f"{one.outcome}: {one.detail}" for one in found}


def test_a_type_that_no_release_has(tmp_path: Path) -> None:
    """transformers stops at the config; no other loader was measured."""
    assert answers(save(tmp_path / "m", of("AcmeForCausalLM", "acme"), llama())) == {
        "error: transformers 5.24.0 has no model of type acme",
        "unknown: tieconv has no measurement of AcmeForCausalLM",
    }
    untyped = {key: value for key, value in of("LlamaForCausalLM", "llama").items() if key != "model_type"}
    refused = "error: AutoModel of transformers 5 refuses a config without a model type"
    refused += ': add "model_type": "llama" to config.json by hand'
    assert answers(save(tmp_path / "untyped", untyped, llama()), ("transformers",)) >= {refused}


@pytest.mark.parametrize("reason", REASONS)
def test_a_model_directory(reason: str, tmp_path: Path) -> None:
    """All loaders give the same reason."""
    assert answers(save(tmp_path / "m", *REASONS[reason])) == {reason}


def test_an_adapter(tmp_path: Path) -> None:
    """What a loader does depends on the base model."""
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 2, "target_modules": ["q_proj"]}
    start = "base_model.model.model.layers.0.self_attn.q_proj"
    tensors = {f"{start}.lora_A.weight": matrix(2, 4), f"{start}.lora_B.weight": matrix(4, 2)}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    (tmp_path / "adapter_model.safetensors").write_bytes(weights(tensors))
    assert answers(tmp_path) == {"unknown: the model is an adapter, and its base model decides"}


def test_a_gguf_file(tmp_path: Path) -> None:
    """Loaders of Hugging Face models are not judged by it."""
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf([("token_embd.weight", (4, 8), 0, bytes(128))]))
    reason = "unknown: GGUF files are for llama.cpp and the programs that use it"
    assert answers(path, ("transformers", "vllm")) == {reason}


@pytest.mark.parametrize("name", APART_IN_5)
def test_a_head_that_only_transformers_4_ties(name: str, tmp_path: Path) -> None:
    """Whether it is the embedding was not compared, since transformers 5 keeps it apart."""
    kind, embedding, head = APART_IN_5[name]
    tensors = {embedding: matrix(), head: matrix(seed=1)}
    found = api.inspect(
        save(tmp_path / "m", of(name, kind, tie_word_embeddings=True), tensors), consumers="transformers"
    ).consumers
    details = {one.version: (str(one.outcome), one.detail) for one in found}
    reason = "only transformers 4 ties the head, and tieconv did not compare it with the embedding"
    assert details["4.57"] == ("unknown", reason)
    assert details["5.x"][0] == "untied"
