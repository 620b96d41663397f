"""`mlx_lm.convert`: without quantisation, with 2 to 8 bits, with the other modes, and in shards."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm
import numpy as np
from mlx_lm import utils

from fixtures import zoo
from tests.oracles.checkpoints import older_keys
from tests.oracles.tokenizer import write_tokenizer
from tests.writers.program import PROMPT, Case, Facts, facts, serve

mx.set_default_device(mx.cpu)
ROWS = 128
KINDS = (
    "LlamaForCausalLM", "Qwen2ForCausalLM", "MistralForCausalLM", "Qwen3ForCausalLM", "Phi3ForCausalLM",
    "Starcoder2ForCausalLM", "GraniteForCausalLM", "Olmo2ForCausalLM", "Gemma2ForCausalLM", "CohereForCausalLM",
)  # fmt: skip
TIED_ONLY = ("Gemma2ForCausalLM", "CohereForCausalLM")
"""mlx-lm has no head for these."""
MODES: dict[str, dict[str, Any]] = {
    "float": {},
    "bfloat16": {"dtype": "bfloat16"},
    **{f"{bits} bits": {"quantize": True, "q_bits": bits, "q_group_size": 32} for bits in (2, 3, 4, 5, 6, 8)},
    "4 bits by 64": {"quantize": True, "q_bits": 4, "q_group_size": 64},
    "mxfp4": {"quantize": True, "q_mode": "mxfp4"},
    "mxfp8": {"quantize": True, "q_mode": "mxfp8"},
    "nvfp4": {"quantize": True, "q_mode": "nvfp4"},
    "mixed 4 and 6": {"quantize": True, "quant_predicate": "mixed_4_6", "q_group_size": 32},
    "head left out": {"quantize": True, "q_bits": 4, "q_group_size": 32, "quant_predicate": "head"},
    "embedding left out": {"quantize": True, "q_bits": 4, "q_group_size": 32, "quant_predicate": "embed"},
}


def write(kind: str, tied: bool, words: dict[str, Any], folder: Path, shard: float | None = None) -> Facts:
    """Convert a model of transformers; ``shard`` is the size of a file in GB, which mlx-lm takes from a constant."""
    model = zoo.build(kind, tie=tied, vocab_size=ROWS)
    words = dict(words)
    left_out = words.get("quant_predicate")
    if left_out in ("head", "embed"):
        words["quant_predicate"] = lambda path, module: left_out not in path and hasattr(module, "to_quantized")
    with tempfile.TemporaryDirectory() as source:
        model.save_pretrained(source)
        write_tokenizer(Path(source), ROWS)
        config = Path(source, "config.json")
        config.write_text(json.dumps(older_keys(json.loads(config.read_text()))))
        told = facts(model, Path(source))
        folder.rmdir()
        if shard:
            size, utils.MAX_FILE_SIZE_GB = utils.MAX_FILE_SIZE_GB, shard
        try:
            mlx_lm.convert(source, str(folder), **words)
        finally:
            if shard:
                utils.MAX_FILE_SIZE_GB = size
    return {"tied": told["tied"]} if words.get("quantize") else told


def read(folder: Path) -> Any:
    model, _ = mlx_lm.load(str(folder))
    return np.array(model(mx.array([PROMPT]))[0, -1].astype(mx.float32))


def cases() -> Iterator[Case]:
    for tied in (True, False):
        for title in ("float", "4 bits"):
            name = f"Llama {'tied' if tied else 'untied'} {title} in shards"
            made = partial(write, KINDS[0], tied, MODES[title], shard=6e-5)
            yield Case(name, made, read, reads=("safetensors",), loader="mlx-lm")
    for kind in KINDS:
        for tied in (True, False)[: 1 if kind in TIED_ONLY else 2]:
            for title, words in MODES.items():
                if kind != KINDS[0] and title not in ("float", "4 bits", "mxfp4", "8 bits"):
                    continue
                name = f"{kind.partition('For')[0].removesuffix('LMHeadModel')} {'tied' if tied else 'untied'} {title}"
                yield Case(name, partial(write, kind, tied, words), read, reads=("safetensors",), loader="mlx-lm")


if __name__ == "__main__":
    serve(cases())
