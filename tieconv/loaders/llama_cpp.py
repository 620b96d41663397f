"""llama.cpp: `convert_hf_to_gguf.py` writes ``output.weight`` where a head is stored, and no tie flag at all.

An architecture `ties` (the head is the embedding exactly where ``output.weight`` is absent), `needs` an output, or
always takes the `embedding`. Some converter classes leave a stored head out.
"""

from __future__ import annotations

from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.prediction import Outcome
from tieconv.loaders import questions as facts
from tieconv.loaders import release_tables
from tieconv.loaders import weight_files as files
from tieconv.loaders.interface import Consumer, Verdict, error, unknown
from tieconv.loaders.questions import Pair, listed, verdict
from tieconv.text import shown


def judge(inspection: Inspection) -> Verdict:
    """What becomes of the model once converted and loaded; of a GGUF file, once loaded."""
    if inspection.checkpoint.format == "gguf" and not inspection.checkpoint.tensors:
        return unknown("the file holds no tensors")
    if inspection.checkpoint.format == "gguf":
        return unknown("which architectures accept a missing output.weight depends on the build that loads the file")
    found = files.by_pattern(
        inspection,
        "llama.cpp's converter",
        (facts.SAFETENSORS, facts.TORCH),
        "model*.safetensors",
        "pytorch_model*.bin",
        indexed=True,
    )
    if found is not None:
        return found
    kind, pair = release_tables.kind("llama.cpp", inspection.family.architecture), facts.pair(inspection)
    if kind is None or pair is None:
        return unknown(f"what llama.cpp does with {facts.class_name(inspection)} is not known")
    if not pair.has_embedding:
        return error(f"{shown(pair.embedding)} is not stored, and token_embd.weight is required", pair.embedding)
    bias = facts.stored_bias(inspection)
    if bias and "bias" not in kind:
        return error(f"{listed(bias)} becomes a tensor that the architecture does not read", *bias)
    return _head(kind, pair, _flag(inspection))


def _flag(inspection: Inspection) -> bool:
    return bool(inspection.checkpoint.config_values.get(facts.FLAG, False))


def _head(kind: str, pair: Pair, flag: bool) -> Verdict:
    drops = "drops if tied" in kind and flag
    used = pair.has_head and not drops and not kind.startswith("embedding")
    if used:
        detail = f"{shown(pair.head)} becomes output.weight, whatever the flag says"
        return verdict(Outcome.UNTIED, detail, (pair.head, pair.embedding))
    if kind.startswith("needs"):
        return error(f"{shown(pair.head)} is not stored, and the architecture needs an output.weight", pair.head)
    if pair.has_head and not drops and "converter drops" not in kind:
        return error(f"{shown(pair.head)} becomes a tensor that the architecture does not read", pair.head)
    if pair.has_head and not pair.same:
        return _lost(pair)
    detail = (
        f"token_embd.weight is the head as well: {shown(pair.head)} is not {'taken' if pair.has_head else 'stored'}"
    )
    return verdict(Outcome.TIED, detail, (pair.head, pair.embedding))


def _lost(pair: Pair) -> Verdict:
    if pair.same is None:
        return unknown(f"{shown(pair.head)} was not compared with {shown(pair.embedding)}")
    return verdict(Outcome.DISCARDED, f"{shown(pair.head)} is left out by the converter", (pair.head,))


CONSUMERS = (
    Consumer(
        "llama.cpp",
        "2026",
        since=(0,),
        before=None,
        measured=False,
        cited="llama.cpp as in llama-cpp-python 0.3.36, conversion/ and src/models/; ggml-org/llama.cpp#5824, #12567",
        judge=judge,
    ),
)
