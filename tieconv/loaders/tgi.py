"""Predict text-generation-inference: the tie flag decides under which name it looks for the head."""

from __future__ import annotations

from tieconv.checkpoint.inspection import Inspection
from tieconv.loaders import evidence
from tieconv.loaders.interface import Consumer
from tieconv.loaders.loaded import Loaded, Refusal, missing, stopped, unknown

_LOADER = "text-generation-inference"


def load(inspection: Inspection) -> Loaded:
    """Return the head and the embedding in the flash model of the architecture."""
    refusal = evidence.by_pattern(inspection, _LOADER, (evidence.SAFETENSORS, evidence.TORCH), "*.safetensors", "*.bin")
    known = refusal or evidence.known_pair(inspection, _LOADER, _LOADER)
    if isinstance(known, Refusal):
        return stopped(_LOADER, known)
    _, pair = known
    if evidence.flags_agree(inspection) is None:
        refusal = unknown("the config sets no tie flag or different ones, so the installed transformers decides")
    elif evidence.class_bias(inspection):
        refusal = unknown(f"tieconv has no measurement of {_LOADER} for a head bias")
    elif not pair.has_embedding:
        refusal = missing([pair.embedding])
    else:
        refusal = None if inspection.config.effective or pair.has_head else missing([pair.head])
    if refusal is not None:
        return stopped(_LOADER, refusal)
    model = evidence.PairModel(_LOADER, inspection, pair)
    return model.tied(pair.embedding) if inspection.config.effective else model.untied()


_SOURCE = "huggingface/text-generation-inference#2918; its flash_llama_modeling.py and flash_qwen2_modeling.py"
CONSUMERS = (Consumer(_LOADER, "3.x", since=(3, 0), cited=_SOURCE, load=load),)
