"""Predict TensorRT-LLM: its engine builder ties a missing name, its PyTorch backend follows the tie flag."""

from __future__ import annotations

from tieconv.checkpoint.inspection import Inspection
from tieconv.loaders import evidence
from tieconv.loaders.interface import Consumer
from tieconv.loaders.loaded import Loaded, Refusal, stopped, unknown

_LOADER = "TensorRT-LLM"
_PATTERNS = ("*.safetensors", "*.bin", "*.pth")
_UNKNOWN_BIAS = f"tieconv has no measurement of {_LOADER} for a head bias"


def engine(inspection: Inspection) -> Loaded:
    """Return the model of `ModelWeightsLoader`: if only one name is stored, it is used for both without a message."""
    known = _pair(inspection)
    if isinstance(known, Refusal):
        return stopped(_LOADER, known)
    if evidence.class_bias(inspection):
        return stopped(_LOADER, unknown(_UNKNOWN_BIAS))
    model = evidence.PairModel(_LOADER, inspection, known)
    if known.has_head and known.has_embedding:
        return model.untied()
    if not known.has_head and not known.has_embedding:
        return stopped(_LOADER, unknown(f"tieconv has no measurement of {_LOADER} for a model with neither name"))
    return model.tied(known.head if known.has_head else known.embedding, remark="the tie flag has no effect")


def pytorch(inspection: Inspection) -> Loaded:
    """Return the model of `DecoderModelForCausalLM`: a tied head is the embedding, and a stored head is skipped."""
    known = _pair(inspection)
    if isinstance(known, Refusal):
        return stopped(_LOADER, known)
    tied = inspection.config.effective
    if evidence.flags_agree(inspection) is None:
        sentence = "the config sets no tie flag or different ones, so the installed transformers decides"
        return stopped(_LOADER, unknown(sentence))
    if evidence.class_bias(inspection):
        return stopped(_LOADER, unknown(_UNKNOWN_BIAS))
    if not known.has_embedding or (not tied and not known.has_head):
        return stopped(_LOADER, unknown(f"tieconv has no measurement of {_LOADER} for a tensor that is not stored"))
    model = evidence.PairModel(_LOADER, inspection, known)
    return model.tied(known.embedding) if tied else model.untied()


def _pair(inspection: Inspection) -> evidence.Pair | Refusal:
    refusal = evidence.by_pattern(inspection, _LOADER, (evidence.SAFETENSORS, evidence.TORCH), *_PATTERNS)
    known = refusal or evidence.known_pair(inspection, _LOADER, "tensorrt-llm")
    return known if isinstance(known, Refusal) else known[1]


_ENGINE = "NVIDIA/TensorRT-LLM#3324, models/model_weights_loader.py, ModelWeightsLoader.update_key_mapping"
_PYTORCH = "TensorRT-LLM, _torch/models/modeling_utils.py and checkpoints/hf/weight_mapper.py, should_skip_module"
CONSUMERS = (
    Consumer("tensorrt-llm", "engine", since=(0, 12), cited=_ENGINE, load=engine, before=(1, 0)),
    Consumer("tensorrt-llm", "pytorch", since=(1, 0), cited=_PYTORCH, load=pytorch),
)
