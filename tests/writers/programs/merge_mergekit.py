"""mergekit: linear, SLERP, TIES, task arithmetic and passthrough merges of two models."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from mergekit.config import MergeConfiguration
from mergekit.merge import MergeOptions, run_merge

from fixtures import zoo
from tests.oracles.tokenizer import write_tokenizer
from tests.writers.program import Case, Facts, facts, last_logits, serve

KINDS = ("LlamaForCausalLM", "Qwen2ForCausalLM", "MistralForCausalLM", "GPT2LMHeadModel")
METHODS = ("linear", "slerp", "ties", "passthrough")


def recipe(method: str, paths: list[str], kind: str) -> dict[str, Any]:
    made: dict[str, Any] = {"merge_method": method, "dtype": "float32"}
    weighted = [{"model": path, "parameters": {"weight": 0.5, "density": 0.7}} for path in paths[1:]]
    if method == "linear":
        return made | {"models": [{"model": path, "parameters": {"weight": 0.5}} for path in paths[:2]]}
    if method == "slerp":
        models = [{"model": path} for path in paths[:2]]
        return made | {"models": models, "base_model": paths[0], "parameters": {"t": 0.5}}
    if method == "passthrough":
        slices = [{"sources": [{"model": paths[0], "layer_range": [0, 2]}]},
                  {"sources": [{"model": paths[1], "layer_range": [1, 2]}]}]  # fmt: skip
        return made | {"slices": slices}
    return made | {"models": weighted, "base_model": paths[0]}


def write(kind: str, tied: bool, method: str, folder: Path, **words: Any) -> Facts:
    with tempfile.TemporaryDirectory() as scratch:
        paths = [f"{scratch}/{number}" for number in range(3)]
        for seed, path in enumerate(paths):
            zoo.build(kind, tie=tied, seed=seed).save_pretrained(path)
            write_tokenizer(Path(path), 99)
        options = MergeOptions(copy_tokenizer=False, cuda=False, quiet=True, **words)
        run_merge(MergeConfiguration.model_validate(recipe(method, paths, kind)), str(folder), options)
    model = getattr(transformers, kind).from_pretrained(folder)
    return facts(model, folder)


def read(kind: str, folder: Path) -> Any:
    return last_logits(getattr(transformers, kind).from_pretrained(folder, dtype=torch.float32))


def cases() -> Iterator[Case]:
    for kind in KINDS:
        for tied in (True, False):
            word = f"{kind.partition('For')[0].removesuffix('LMHeadModel')} {'tied' if tied else 'untied'}"
            for method in METHODS[: 3 if kind.startswith("Qwen2") else 4]:
                yield Case(f"{method} {word}", partial(write, kind, tied, method), partial(read, kind))
            made = partial(write, kind, tied, "linear", out_shard_size=60_000)
            yield Case(f"linear {word} in shards", made, partial(read, kind))


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    serve(cases())
