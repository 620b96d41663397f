"""Predict the model builder of onnxruntime-genai: it loads with transformers, then shares a tied head's matrix."""

from __future__ import annotations

from dataclasses import replace

from tieconv.architectures.flag_levels import FLAG
from tieconv.checkpoint.inspection import Inspection
from tieconv.loaders.evidence.head_pair import Pair
from tieconv.loaders.evidence.unclear import known_pair
from tieconv.loaders.interface import Consumer
from tieconv.loaders.loaded import Loaded, Refusal, stopped
from tieconv.loaders.transformers import load5


def load(inspection: Inspection) -> Loaded:
    """Return what the exported graph uses, for transformers 5 and a builder without extra options."""
    loaded = load5.load(inspection)
    if inspection.checkpoint.config is None or not inspection.family.architecture:
        return loaded
    known = known_pair(inspection, "onnxruntime-genai", "onnxruntime-genai")
    if isinstance(known, Refusal):
        return stopped(loaded.loader, known)
    shares = inspection.checkpoint.config_values.get(FLAG) is True
    return _shared(loaded, known[1]) if shares else loaded


def _shared(loaded: Loaded, pair: Pair) -> Loaded:
    """Return the model in which the embedding reads the head's matrix, if both were loaded."""
    stored = loaded.source(pair.head) is not None and loaded.source(pair.embedding) is not None
    if not stored or loaded.tied(pair.head, pair.embedding):
        return loaded
    head = replace(loaded.parameters[pair.head], factor=1.0)
    return replace(
        loaded,
        parameters={**loaded.parameters, pair.embedding: head},
        alternatives=tuple(_shared(alternative, pair) for alternative in loaded.alternatives),
        remark="",
    )


CONSUMERS = (
    Consumer(
        "onnxruntime-genai",
        "0.18",
        since=(0, 18),
        before=None,
        measured=True,
        cited="onnxruntime-genai 0.18.0, models/builder.py and builders/base.py; microsoft/onnxruntime-genai#2306",
        load=load,
        ran=("0.18.0",),
    ),
)
