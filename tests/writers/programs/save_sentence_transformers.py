"""sentence-transformers (encoders without a head) and trl's model with a value head."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import sentence_transformers
import torch
import transformers
from sentence_transformers import models
from sentence_transformers.sparse_encoder import models as sparse

from fixtures import zoo
from tests.oracles.tokenizer import write_tokenizer
from tests.writers.program import Case, Facts, serve

KINDS = ("BertForMaskedLM", "RobertaForMaskedLM", "LlamaForCausalLM", "T5ForConditionalGeneration", "MPNetForMaskedLM",
         "DistilBertForMaskedLM", "ModernBertForMaskedLM", "Qwen3ForCausalLM", "XLMRobertaForMaskedLM",
         "ElectraForMaskedLM")  # fmt: skip
HEADS = {
    "pooling": lambda width: [models.Pooling(width)],
    "normalised": lambda width: [models.Pooling(width, "max"), models.Normalize()],
    "dense": lambda width: [models.Pooling(width), models.Dense(width, 16)],
}


def write(kind: str, head: str, folder: Path, **words: Any) -> Facts:
    with tempfile.TemporaryDirectory() as source:
        zoo.build(kind, tie=True, vocab_size=112).save_pretrained(source)
        write_tokenizer(Path(source), 112)
        tower = models.Transformer(source)
        tower.tokenizer.pad_token = "<unk>"
        model = sentence_transformers.SentenceTransformer(modules=[tower, *HEADS[head](64)], device="cpu")
        model.save_pretrained(str(folder), **words)
    return {}


def write_sparse(folder: Path) -> Facts:
    """A SPLADE model: an encoder with its tied head of a masked language model."""
    with tempfile.TemporaryDirectory() as source:
        zoo.build("BertForMaskedLM", tie=True, vocab_size=112).save_pretrained(source)
        write_tokenizer(Path(source), 112)
        tower = sparse.MLMTransformer(source)
        tower.tokenizer.pad_token = "<unk>"
        pooling = sparse.SpladePooling("max")
        sentence_transformers.SparseEncoder(modules=[tower, pooling], device="cpu").save_pretrained(str(folder))
    return {"tied": True}


def read(folder: Path) -> Any:
    return sentence_transformers.SentenceTransformer(str(folder), device="cpu").encode(["ab cd"])[0]


def read_sparse(folder: Path) -> Any:
    return sentence_transformers.SparseEncoder(str(folder), device="cpu").encode(["ab cd"])[0].to_dense()


def cases() -> Iterator[Case]:
    for kind in KINDS:
        for head in HEADS:
            yield Case(f"{kind.partition('For')[0]} {head}", partial(write, kind, head), read, reads=("safetensors",))
        made = partial(write, kind, "pooling", safe_serialization=False)
        yield Case(f"{kind.partition('For')[0]} pooling bin", made, read)
    yield Case("SPLADE", write_sparse, read_sparse, reads=("safetensors",))


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    serve(cases())
