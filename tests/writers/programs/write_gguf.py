"""The `gguf` package: a writer of floats and of each quantised type that it makes. transformers reads the file."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import transformers

from fixtures import zoo
from tests.oracles.tokenizer import _SPECIAL, _TEXT
from tests.writers.program import Case, Facts, last_logits, serve

ROWS, WIDTH, LAYERS = 128, 256, 2
TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")
FILE = "model.gguf"
KINDS = {"LlamaForCausalLM": "llama", "Qwen2ForCausalLM": "qwen2"}


def write(kind: str, tied: bool, head: str, folder: Path) -> Facts:
    """Write a model whose matrices have the type ``head``; without a head tensor where it is tied."""
    sizes = {"hidden_size": WIDTH, "intermediate_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": 4,
             "num_key_value_heads": 4, "head_dim": 64}  # fmt: skip
    model = zoo.build(kind, tie=tied, vocab_size=ROWS, **sizes)
    name = KINDS[kind]
    writer = gguf.GGUFWriter(folder / FILE, name)
    writer.add_block_count(LAYERS)
    writer.add_context_length(64)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(WIDTH)
    writer.add_head_count(4)
    writer.add_head_count_kv(4)
    writer.add_key_length(64)
    writer.add_value_length(64)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_dimension_count(64)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(ROWS)
    tokens = [*_SPECIAL, "\u0120", "ab", *_TEXT]
    tokens += [f"<{number}>" for number in range(ROWS - len(tokens))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * ROWS)
    writer.add_token_merges(["a b"])
    names = gguf.get_tensor_name_map(getattr(gguf.MODEL_ARCH, name.upper()), LAYERS)
    told: Facts = {"tied": tied}
    for key, value in model.state_dict().items():
        if tied and key == "lm_head.weight":
            continue
        stored = names.get_name(key, (".weight", ".bias"))
        array = value.numpy()
        kind_of = gguf.GGMLQuantizationType[head if array.ndim == 2 else "F32"]
        writer.add_tensor(stored, gguf.quants.quantize(array, kind_of), raw_dtype=kind_of)
        told |= {role: stored for role, word in (("embedding", "embed_tokens"), ("head", "lm_head")) if word in key}
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return told


def read(file: Path) -> Any:
    model = transformers.AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name)
    return np.nan_to_num(last_logits(model), nan=-1e9)


def cases() -> Iterator[Case]:
    for kind, name in KINDS.items():
        for tied in (True, False):
            for head in TYPES:
                title = f"{name} {'tied' if tied else 'untied'} {head}"
                yield Case(title, partial(write, kind, tied, head), read, reads=("any",), file=FILE)


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    serve(cases())
