"""Predict the converter of CTranslate2: it loads the model with transformers and copies the head and the embedding.

The config class chooses the loader. A class of transformers may lack a setting that the loader reads.
"""

from __future__ import annotations

from tieconv.checkpoint.inspection import Inspection
from tieconv.loaders import release_tables, transformers5
from tieconv.loaders.interface import Consumer
from tieconv.loaders.loaded import Cause, Loaded, Refusal, stopped, unknown
from tieconv.text import shown, with_type

_LOADER = "ctranslate2"
_NEEDED = "normalize_before"


def load(inspection: Inspection) -> Loaded:
    """Return what the converted model uses, for transformers 5 and the converter without options."""
    loaded = transformers5.load(inspection)
    checkpoint = inspection.checkpoint
    if checkpoint.config is None or checkpoint.adapter is not None or checkpoint.format == "gguf":
        return loaded
    refusal = _refused(inspection)
    return stopped(_LOADER, refusal) if refusal is not None else loaded


def _refused(inspection: Inspection) -> Refusal | None:
    family, config = inspection.family, inspection.checkpoint.config_values
    model_type = str(config.get("model_type") or "")
    if model_type not in release_tables.names(_LOADER, "types"):
        return Refusal(Cause.CONFIG, f"CTranslate2 4.8 does not convert models {with_type(model_type, 'of type')}")
    kind = release_tables.kind(_LOADER, family.architecture)
    if kind == "lacks a setting":
        setting = "n_layer" if model_type == "phi" else "rotary_pct"
        sentence = f"CTranslate2 4.8 reads {setting} of {shown(family.architecture)}, which transformers 5.23 lacks"
        return Refusal(Cause.CONFIG, sentence)
    if kind == "needs normalize_before" and _NEEDED not in config:
        return Refusal(Cause.CONFIG, f"CTranslate2 4.8 reads {_NEEDED}, and the config does not have it")
    if kind in (None, "types"):
        return unknown(f"tieconv has no measurement of CTranslate2 for {shown(family.architecture)}")
    return None


_SOURCE = "ctranslate2 4.8.5, converters/transformers.py, with transformers 5.23.0"
CONSUMERS = (Consumer(_LOADER, "4.8", since=(4, 8), cited=_SOURCE, load=load, ran=("4.8.5",)),)
