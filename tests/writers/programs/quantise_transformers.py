"""torchao, quanto, HQQ and bitsandbytes, which transformers calls at loading; `save_pretrained` stores the result."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from hqq.core import quantize as hqq_quantize
from hqq.models.hf.base import AutoHQQHFModel
from optimum import quanto

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


def bitsandbytes(bits: int, head: bool = False, **words: Any) -> Any:
    skipped = ["none"] if head else None
    return transformers.BitsAndBytesConfig(**{f"load_in_{bits}bit": True}, llm_int8_skip_modules=skipped, **words)


SCHEMES: dict[str, Callable[[], Any]] = {
    "torchao int8": partial(torchao, "Int8WeightOnlyConfig", False),
    "torchao int8 with head": partial(torchao, "Int8WeightOnlyConfig", True),
    "torchao float8": partial(torchao, "Float8WeightOnlyConfig", False),
    "bitsandbytes nf4": partial(bitsandbytes, 4, bnb_4bit_quant_type="nf4"),
    "bitsandbytes fp4": partial(bitsandbytes, 4, bnb_4bit_quant_type="fp4"),
    "bitsandbytes nf4 twice": partial(bitsandbytes, 4, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True),
    "bitsandbytes nf4 with head": partial(bitsandbytes, 4, True, bnb_4bit_quant_type="nf4"),
    "bitsandbytes int8": partial(bitsandbytes, 8),
    "bitsandbytes int8 with head": partial(bitsandbytes, 8, True),
}


def write(kind: str, tied: bool, scheme: str, folder: Path, **words: Any) -> Facts:
    with tempfile.TemporaryDirectory() as source:
        zoo.build(kind, tie=tied, **SIZES[kind]).to(torch.bfloat16).save_pretrained(source)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            source, quantization_config=SCHEMES[scheme](), device_map="cpu", dtype=torch.bfloat16
        )
    model.save_pretrained(folder, **words)
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    return {"tied": getattr(head, "weight", None) is embedding.weight}


def write_quanto(kind: str, tied: bool, weights: str, head: bool, folder: Path) -> Facts:
    """Quantise and save with quanto's class."""
    made = quanto.QuantizedModelForCausalLM.quantize(
        zoo.build(kind, tie=tied, **SIZES[kind]), weights=getattr(quanto, weights), exclude=None if head else "lm_head"
    )
    made.save_pretrained(folder)
    return {"tied": tied and not head}


def write_hqq(kind: str, tied: bool, bits: int, folder: Path) -> Facts:
    """Quantise and save with HQQ's class, which leaves the head out."""
    model = zoo.build(kind, tie=tied, **SIZES[kind])
    settings = hqq_quantize.BaseQuantizeConfig(nbits=bits, group_size=32)
    AutoHQQHFModel.quantize_model(model, settings, compute_dtype=torch.float32, device="cpu")
    AutoHQQHFModel.save_quantized(model, str(folder))
    return {"tied": model.lm_head.weight is model.get_input_embeddings().weight}


def read_quanto(folder: Path) -> Any:
    return last_logits(quanto.QuantizedModelForCausalLM.from_pretrained(folder))


def read_hqq(folder: Path) -> Any:
    return last_logits(AutoHQQHFModel.from_quantized(str(folder), compute_dtype=torch.float32, device="cpu"))


def read(folder: Path) -> Any:
    return last_logits(transformers.AutoModelForCausalLM.from_pretrained(folder, device_map="cpu"))


def cases() -> Iterator[Case]:
    for scheme in SCHEMES:
        for kind in KINDS:
            for tied in (True, False):
                title = f"{scheme} {kind.partition('For')[0]} {'tied' if tied else 'untied'}"
                broken = tied and scheme.endswith("with head") and scheme.startswith("bitsandbytes")
                yield Case(title, partial(write, kind, tied, scheme), read, named=("QNT009",) if broken else ())
    for tied in (True, False):
        for kind in KINDS[:2]:
            title = f"{kind.partition('For')[0]} {'tied' if tied else 'untied'}"
            for scheme in ("torchao int8", "bitsandbytes nf4"):
                made = partial(write, kind, tied, scheme, max_shard_size="30KB")
                yield Case(f"{scheme} {title} in shards", made, read)
            for weights in ("qint8", "qint4", "qfloat8"):
                for head in (True, False):
                    made = partial(write_quanto, kind, tied, weights, head)
                    name = f"quanto {weights} {title}{' with head' if head else ''}"
                    yield Case(name, made, read_quanto, reads=("safetensors",))
            for bits in (8, 4, 2):
                made = partial(write_hqq, kind, tied, bits)
                yield Case(f"HQQ {bits} bits {title}", made, read_hqq, named=("refused",))


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    serve(cases())
