"""No input makes a prediction fail: every hostile checkpoint that can be read gets an answer from every loader."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import tieconv
from fixtures.hostile import write_corpus
from tests.checks.fixtures.model import BERT, GEMMA3, LLAMA, NESTED_EMBED, Config, bert, llama, matrix, save
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


@pytest.mark.parametrize("config", [LLAMA, BERT, GEMMA3], ids=lambda config: config["model_type"])
@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_any_value_of_the_flag(config: Config, value: object, tmp_path: Path) -> None:
    """A flag that is no boolean, and other keys of a wrong type, give an answer from each loader."""
    tensors = {**llama(head=matrix(seed=1)), **bert(), NESTED_EMBED: matrix()}
    changed = {**config, "tie_word_embeddings": value, "dtype": value, "vocab_size": value, "text_config": value}
    found = tieconv.inspect(save(tmp_path / "model", changed, tensors), consumers="all").consumers
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
