"""`save_pretrained` of transformers: classes tied and untied, in one file and in shards; transformers 4 also `.bin`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers

from fixtures import zoo
from tests.writers.program import Case, Facts, facts, serve, without_sampling

KINDS = (
    "LlamaForCausalLM", "GPT2LMHeadModel", "BertForMaskedLM", "T5ForConditionalGeneration", "GemmaForCausalLM",
    "BartForConditionalGeneration", "GPTNeoXForCausalLM", "OPTForCausalLM", "Qwen2ForCausalLM", "BloomForCausalLM",
    "MambaForCausalLM", "PhiForCausalLM", "MptForCausalLM", "FalconForCausalLM", "CohereForCausalLM",
    "RobertaForMaskedLM", "ElectraForMaskedLM", "MarianMTModel", "LlavaForConditionalGeneration",
    "WhisperForConditionalGeneration",
)  # fmt: skip
OLD = int(transformers.__version__.partition(".")[0]) < 5
SHARD = "60KB"
THREE_TABLES = ("BartForConditionalGeneration", "MarianMTModel")
"""transformers 4 stores one of their three tables, and loads the others with random values where they are not tied."""
TWO_BIASES = ("BertForMaskedLM", "RobertaForMaskedLM")
ONE_BIAS = ("BIA002",) if OLD else ()
"""transformers 4 stores one name of the head's bias in safetensors, and transformers 5 fills the other with zeros."""


def build(kind: str, tied: bool) -> Any:
    return without_sampling(zoo.build(kind, tie=tied)) if OLD else zoo.build(kind, tie=tied)


def save(model: Any, folder: Path, **words: Any) -> Facts:
    model.save_pretrained(folder, **words)
    return facts(model, folder)


def write(kind: str, tied: bool, folder: Path, dtype: str = "float32", **words: Any) -> Facts:
    made = save(build(kind, tied).to(getattr(torch, dtype)), folder, **words)
    return {"tied": tied} if OLD and kind in THREE_TABLES else made


def write_equal(kind: str, folder: Path) -> Facts:
    """An untied model whose head was copied from the embedding."""
    model = build(kind, False)
    model.get_output_embeddings().weight.data.copy_(model.get_input_embeddings().weight.data)
    made = save(model, folder)
    return {"tied": False} if OLD and kind in THREE_TABLES else made


def write_bias(kind: str, tied: bool, folder: Path, size: float) -> Facts:
    """A class whose head has a bias, of which every value is ``size``."""
    model = build(kind, tied)
    model.get_output_embeddings().bias.data.fill_(size)
    return save(model, folder)


def write_state(kind: str, tied: bool, folder: Path) -> Facts:
    """The state dict in a `.bin` beside the config, as trainers save it."""
    model = build(kind, tied)
    model.config.save_pretrained(folder)
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    return facts(model, folder)


def read(kind: str, folder: Path) -> Any:
    model = getattr(transformers, kind).from_pretrained(folder, **{"torch_dtype" if OLD else "dtype": torch.float32})
    return zoo.logits(model)


def cases() -> Iterator[Case]:
    for kind in KINDS:
        short = kind.partition("For")[0].removesuffix("LMHeadModel").removesuffix("MTModel")
        for tied in (True, False):
            word = "tied" if tied else "untied"
            files: dict[str, Any] = {"": {}, "shards": {"max_shard_size": SHARD}}
            if OLD:
                files |= {"bin": {"safe_serialization": False},
                          "bin shards": {"safe_serialization": False, "max_shard_size": SHARD}}  # fmt: skip
            for title, words in files.items():
                named = ONE_BIAS if kind in TWO_BIASES and not tied and "bin" not in title else ()
                if OLD and kind in THREE_TABLES and not tied and "bin" not in title:
                    named = ("TIE011",)
                made = partial(write, kind, tied, **words)
                yield Case(f"{short} {word} {title}".strip(), made, partial(read, kind), named=named)
        if kind != "T5ForConditionalGeneration":  # transformers 5 ties it again, whatever its config says
            named = ONE_BIAS if kind in TWO_BIASES else ("TIE011",) if OLD and kind in THREE_TABLES else ()
            yield Case(f"{short} equal copy", partial(write_equal, kind), partial(read, kind), named=named)
    for kind in ("LlamaForCausalLM", "GPT2LMHeadModel", "T5ForConditionalGeneration"):
        for tied in (True, False):
            for dtype in ("bfloat16", "float16"):
                title = f"{kind[:4]} {'tied' if tied else 'untied'} {dtype}"
                yield Case(title, partial(write, kind, tied, dtype=dtype), partial(read, kind))
            yield Case(
                f"{kind[:4]} {'tied' if tied else 'untied'} state dict",
                partial(write_state, kind, tied),
                partial(read, kind),
            )
    for kind in ("BertForMaskedLM", "RobertaForMaskedLM", "PhiForCausalLM"):
        for tied in (True, False):
            for size in (0.0, 0.5):
                title = f"{kind[:4]} {'tied' if tied else 'untied'} bias {size}"
                named = ONE_BIAS if kind in TWO_BIASES and size and not tied else ()
                yield Case(title, partial(write_bias, kind, tied, size=size), partial(read, kind), named=named)


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    serve(cases())
