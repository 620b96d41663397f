"""Predict llama.cpp: `convert_hf_to_gguf.py` writes ``output.weight`` for a stored head, and no tie flag.

An architecture `ties`: it uses the embedding as the head if ``output.weight`` is absent. Other architectures `need` an
output, or always use the `embedding`. Some converter classes skip a stored head.
"""

from __future__ import annotations

from tieconv.architectures.flag_levels import FLAG
from tieconv.checkpoint.inspection import Inspection
from tieconv.loaders.evidence.head_pair import Pair, listed, stored_bias
from tieconv.loaders.evidence.pair_model import PairModel
from tieconv.loaders.evidence.unclear import SAFETENSORS, TORCH, known_pair
from tieconv.loaders.evidence.weight_patterns import by_pattern
from tieconv.loaders.interface import Consumer
from tieconv.loaders.loaded import Cause, Loaded, Refusal, stopped, unknown
from tieconv.text import shown

_LOADER = "llama.cpp"
_CONVERTER = "llama.cpp's converter"
_PATTERNS = ("model*.safetensors", "pytorch_model*.bin")


def load(inspection: Inspection) -> Loaded:
    """Return the model after conversion and loading; a GGUF file is only loaded."""
    refusal = _gguf(inspection) or by_pattern(inspection, _CONVERTER, (SAFETENSORS, TORCH), *_PATTERNS, indexed=True)
    known = refusal or known_pair(inspection, _LOADER, "llama.cpp")
    if isinstance(known, Refusal):
        return stopped(_LOADER, known)
    kind, pair = known
    flag = bool(inspection.checkpoint.config_values.get(FLAG, False))
    dropped = "drops if tied" in kind and flag
    written = pair.has_head and not dropped and not kind.startswith("embedding")
    refusal = _names_refused(inspection, kind, pair, read=written, left_out=dropped or "converter drops" in kind)
    if refusal is not None:
        return stopped(_LOADER, refusal)
    model = PairModel(_LOADER, inspection, pair, has_bias="bias" in kind)
    if written:
        return model.untied(remark=f"the converter writes {shown(pair.head)} as output.weight, with any tie flag")
    return model.tied(pair.embedding, remark="llama.cpp uses token_embd.weight for both")


def _gguf(inspection: Inspection) -> Refusal | None:
    if inspection.checkpoint.format != "gguf":
        return None
    if not inspection.checkpoint.tensors:
        return unknown("the file holds no tensors")
    return unknown("the llama.cpp build that loads the file decides whether output.weight may be missing")


def _names_refused(inspection: Inspection, kind: str, pair: Pair, *, read: bool, left_out: bool) -> Refusal | None:
    """Return the refusal of a name. The loader may have ``read`` the head, or the converter ``left_out`` it."""
    bias = stored_bias(inspection)
    if not pair.has_embedding:
        sentence = f"{shown(pair.embedding)} is not stored, and the architecture needs a token_embd.weight"
        return Refusal(Cause.NAMES, sentence, (pair.embedding,))
    if bias and "bias" not in kind:
        return Refusal(Cause.NAMES, f"the architecture has no tensor for {listed(bias)}", bias)
    if not read and kind.startswith("needs"):
        sentence = f"{shown(pair.head)} is not stored, and the architecture needs an output.weight"
        return Refusal(Cause.NAMES, sentence, (pair.head,))
    if not read and pair.has_head and not left_out:
        sentence = f"the architecture has no tensor for {shown(pair.head)}"
        return Refusal(Cause.NAMES, sentence, (pair.head,))
    return None


CONSUMERS = (
    Consumer(
        "llama.cpp",
        "2026",
        since=(0,),
        before=None,
        measured=True,
        cited="llama.cpp as in llama-cpp-python 0.3.36, conversion/ and src/models/; ggml-org/llama.cpp#5824, #12567",
        load=load,
        ran=("0.3.36",),
    ),
)
