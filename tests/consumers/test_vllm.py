"""vLLM's rules by class, file and dtype; `tests/oracles` holds the same rules against vLLM itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tieconv as api
from tests.checks.fixtures.model import GEMMA, LLAMA, Config, Tensors, flagged, llama, matrix, save, vector, with_row
from tests.lazy import save_file, torch

EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"
HEAD_ONLY: Tensors = {HEAD: matrix()}
OWN = llama(head=with_row(matrix()))
COPY = llama(head=matrix())
WIDE = llama(head=np.concatenate([matrix(), matrix()]))
TIED, UNTIED = flagged(LLAMA, True), flagged(LLAMA, False)


def of(architecture: str, model_type: str, flag: bool | None = None, **more: Any) -> Config:
    """Return a config of another class."""
    config = {**LLAMA, "architectures": [architecture], "model_type": model_type, **more}
    return config if flag is None else flagged(config, flag)


def prefixed(tensors: Tensors) -> Tensors:
    """Return Bloom's names."""
    return {("transformer.word_embeddings.weight" if name == EMBED else name): entry for name, entry in tensors.items()}


COHERE, GEMMA2 = ("CohereForCausalLM", "cohere"), ("Gemma2ForCausalLM", "gemma2")
BLOOM, OLMOE, ARCEE = ("BloomForCausalLM", "bloom"), ("OlmoeForCausalLM", "olmoe"), ("ArceeForCausalLM", "arcee")
GEMMA4 = ("Gemma4ForCausalLM", "gemma4_text")
NULL: Config = {"tie_word_embeddings": None}
MPT: Tensors = {"transformer.wte.weight": matrix()}
BIASED = {**OWN, "lm_head.bias": vector()}

CASES: dict[str, tuple[Config, Tensors, str, str]] = {
    "Bloom renames a stored head": (of(*BLOOM, True), prefixed(OWN), "error", "error"),
    "Bloom renames an untied head": (of(*BLOOM, False), prefixed(OWN), "error", "error"),
    "Bloom alone": (of(*BLOOM, True), prefixed(llama()), "tied", "tied"),
    "Cohere skips the head": (of(*COHERE, True), HEAD_ONLY, "random", "random"),
    "Cohere without a flag": (of(*COHERE), HEAD_ONLY, "random", "random"),
    "Cohere, declared untied": (of(*COHERE, False), OWN, "error", "discarded"),
    "Gemma 2 has no parameter for a head": (of(*GEMMA2, True), OWN, "discarded", "error"),
    "Gemma asserts the flag only before 0.29": (flagged(GEMMA, False), OWN, "error", "untied"),
    "a class with its own head": (of(*OLMOE, True), llama(), "random", "random"),
    "an equal copy in such a class": (of(*OLMOE, True), COPY, "untied", "tied"),
    "an untied copy": (UNTIED, COPY, "untied", "untied"),
    "more rows in a head that is not read": ({**TIED, "vocab_size": 8}, WIDE, "discarded", "error"),
    "more rows, declared untied": ({**UNTIED, "vocab_size": 8}, WIDE, "error", "error"),
    "a null flag": ({**LLAMA, "tie_word_embeddings": None}, OWN, "error", "error"),
    "a null flag in vLLM's own config": (of("NemotronForCausalLM", "nemotron", None, **NULL), OWN, "untied", "error"),
    "an equal copy beside a second embedding": (of(*GEMMA4, True), COPY, "tied", "untied"),
    "no second embedding": (of(*GEMMA4, True, hidden_size_per_layer_input=0), COPY, "tied", "tied"),
    "a class without any model": (
        of("MptForCausalLM", "mpt", True),
        {"transformer.wte.weight": matrix()},
        "tied",
        "error",
    ),
    "a key that the class needs": (of("DeepseekV3ForCausalLM", "deepseek_v3", False), OWN, "error", "error"),
    "a bias in the Transformers backend": (of(*ARCEE, False), BIASED, "untied, dropped lm_head.bias", "untied"),
    "a bias elsewhere": (UNTIED, BIASED, "untied, dropped lm_head.bias", "untied, dropped lm_head.bias"),
}


def predicted(folder: Path) -> list[str]:
    """Return the outcomes for vLLM 0.28 and 0.32, with the biases that they drop."""
    found = api.inspect(folder, consumers="vllm").consumers
    return [str(entry.outcome) + (f", dropped {' '.join(entry.dropped)}" if entry.dropped else "") for entry in found]


@pytest.mark.parametrize("case", CASES)
def test_outcome(case: str, tmp_path: Path) -> None:
    """Before 0.29, and from 0.29 on."""
    config, tensors, older, newer = CASES[case]
    assert predicted(save(tmp_path / "model", config, tensors)) == [older, newer]


def indexed(folder: Path, config: Config, stored: Tensors, stray: Tensors) -> Path:
    """Save ``stored`` as one shard with an index, and ``stray`` in a file that the index does not name."""
    save(folder, config, stored)
    (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
    index = {"metadata": {}, "weight_map": dict.fromkeys(stored, "model-00001-of-00001.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    save(folder / "stray", config, stray)
    (folder / "stray" / "model.safetensors").rename(folder / "extra.safetensors")
    (folder / "stray" / "config.json").unlink()
    (folder / "stray").rmdir()
    return folder


@pytest.mark.parametrize("stray", [HEAD_ONLY, {"other.lm_head.weight": matrix()}])
def test_a_head_that_the_index_does_not_name(stray: Tensors, tmp_path: Path) -> None:
    """vLLM 0.29 unties the model because of the head, and then does not read the file."""
    folder = indexed(tmp_path / "model", TIED, llama(), stray)
    assert predicted(folder) == ["tied", "random"]
    (*_, newer) = api.inspect(folder, consumers="vllm").consumers
    assert HEAD in newer.detail


def test_a_stray_file_without_a_head(tmp_path: Path) -> None:
    """Other tensors in such a file change nothing."""
    assert predicted(indexed(tmp_path / "model", TIED, llama(), {"extra.weight": matrix()})) == ["tied", "tied"]


def test_a_head_that_is_equal_after_the_cast(tmp_path: Path) -> None:
    """vLLM loads float32 as bfloat16, and ties two tables that are then equal: the detail names the dtype."""
    table = torch.from_numpy(matrix() + np.float32(0.001))
    stored = {EMBED: table, HEAD: table.to(torch.bfloat16)}
    folder = save(tmp_path / "model", {**TIED, "dtype": "float32"}, llama())
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    _, newer = api.inspect(folder, consumers="vllm").consumers
    assert newer.outcome == "tied"
    assert "equal only in BF16" in newer.detail
    (folder / "config.json").write_text(json.dumps({**TIED, "dtype": "float16"}))
    assert predicted(folder)[1] == "untied"
