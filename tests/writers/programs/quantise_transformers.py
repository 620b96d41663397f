"""torchao, quanto, HQQ and bitsandbytes, which transformers calls at loading; `save_pretrained` stores the result."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers

from fixtures import zoo
from tests.writers.program import Case, Facts, last_logits, serve

KINDS = ("LlamaForCausalLM", "Qwen2ForCausalLM", "OPTForCausalLM")
SIZES = {kind: {"vocab_size": 128, "ffn_dim" if "OPT" in kind else "intermediate_size": 128} for kind in KINDS}
"""The kernels for CPUs need multiples of 32."""


def torchao(kind: str, head: bool) -> Any:
    from torchao import quantization

    made = getattr(quantization, kind)()
    skipped = [] if head else ["lm_head"]
    return transformers.TorchAoConfig(made, modules_to_not_convert=skipped, include_input_output_embeddings=head)


def quanto(weights: str) -> Any:
    return transformers.QuantoConfig(weights=weights, modules_to_not_convert=["lm_head"])


def hqq(bits: int) -> Any:
    return transformers.HqqConfig(nbits=bits, group_size=32)


def bitsandbytes(bits: int, head: bool = False, **words: Any) -> Any:
    skipped = ["none"] if head else None
    return transformers.BitsAndBytesConfig(**{f"load_in_{bits}bit": True}, llm_int8_skip_modules=skipped, **words)


SCHEMES: dict[str, Callable[[], Any]] = {
    "torchao int8": partial(torchao, "Int8WeightOnlyConfig", False),
    "torchao int8 with head": partial(torchao, "Int8WeightOnlyConfig", True),
    "torchao float8": partial(torchao, "Float8WeightOnlyConfig", False),
    "quanto int8": partial(quanto, "int8"),
    "quanto int4": partial(quanto, "int4"),
    "quanto float8": partial(quanto, "float8"),
    **{f"HQQ {bits} bits": partial(hqq, bits) for bits in (8, 4, 2)},
    "bitsandbytes nf4": partial(bitsandbytes, 4, bnb_4bit_quant_type="nf4"),
    "bitsandbytes fp4": partial(bitsandbytes, 4, bnb_4bit_quant_type="fp4"),
    "bitsandbytes nf4 twice": partial(bitsandbytes, 4, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True),
    "bitsandbytes nf4 with head": partial(bitsandbytes, 4, True, bnb_4bit_quant_type="nf4"),
    "bitsandbytes int8": partial(bitsandbytes, 8),
    "bitsandbytes int8 with head": partial(bitsandbytes, 8, True),
}


def write(kind: str, tied: bool, scheme: str, folder: Path) -> Facts:
    with tempfile.TemporaryDirectory() as source:
        zoo.build(kind, tie=tied, **SIZES[kind]).to(torch.bfloat16).save_pretrained(source)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            source, quantization_config=SCHEMES[scheme](), device_map="cpu", dtype=torch.bfloat16
        )
    model.save_pretrained(folder)
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    return {"tied": getattr(head, "weight", None) is embedding.weight}


def read(folder: Path) -> Any:
    return last_logits(transformers.AutoModelForCausalLM.from_pretrained(folder, device_map="cpu"))


def cases() -> Iterator[Case]:
    for scheme in SCHEMES:
        for kind in KINDS:
            for tied in (True, False):
                title = f"{scheme} {kind.partition('For')[0]} {'tied' if tied else 'untied'}"
                yield Case(title, partial(write, kind, tied, scheme), read)


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    serve(cases())
