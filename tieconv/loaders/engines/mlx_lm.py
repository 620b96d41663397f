"""Predict mlx-lm: the source file of each model type has a default flag, and loading is strict about names.

A type follows the `flag` (with a default, or `required`). While tied, it `drops` a stored head or refuses it. Other
types always have their `own` head, or always use the `embedding`.
"""

from __future__ import annotations

from tieconv.architectures.flag_levels import FLAG
from tieconv.checkpoint.inspection import Inspection
from tieconv.loaders import release_tables
from tieconv.loaders.evidence.head_pair import Pair, listed, stored_bias
from tieconv.loaders.evidence.pair_model import PairModel
from tieconv.loaders.evidence.unclear import SAFETENSORS, known_pair
from tieconv.loaders.evidence.weight_patterns import by_pattern
from tieconv.loaders.interface import Consumer
from tieconv.loaders.loaded import Cause, Loaded, Refusal, missing, stopped
from tieconv.text import shown

_LOADER = "mlx-lm"


def load(inspection: Inspection) -> Loaded:
    """Return the head and the embedding in mlx-lm's model."""
    model_type = inspection.family.model_type
    file = release_tables.by_type("mlx-lm", "same file").get(model_type, model_type)
    refusal = by_pattern(inspection, _LOADER, (SAFETENSORS,), "model*.safetensors")
    known = refusal or known_pair(inspection, f"{_LOADER} 0.32", "mlx-lm", file)
    if isinstance(known, Refusal):
        return stopped(_LOADER, known)
    kind, pair = known
    tied = _is_tied(inspection, kind)
    refusal = _names_refused(inspection, kind, pair, tied)
    if refusal is not None:
        return stopped(_LOADER, refusal)
    model = PairModel(_LOADER, inspection, pair, has_bias="bias" in kind)
    return model.tied(pair.embedding) if tied else model.untied()


def _is_tied(inspection: Inspection, kind: str) -> bool | None:
    """Return whether the head is the embedding; ``None`` if the config lacks a flag that the model requires."""
    if not kind.startswith("flag"):
        return kind == "embedding"
    values = inspection.checkpoint.config_values
    if FLAG in values:
        return bool(values[FLAG])
    return None if "required" in kind else "default true" in kind


def _names_refused(inspection: Inspection, kind: str, pair: Pair, tied: bool | None) -> Refusal | None:
    bias = stored_bias(inspection)
    if not pair.has_embedding:
        return missing([pair.embedding])
    if bias and "bias" not in kind:
        return Refusal(Cause.NAMES, f"the model class has no parameter {listed(bias)}", bias)
    if tied is None:
        return Refusal(Cause.CONFIG, "the config has no tie_word_embeddings, and the model class requires it")
    if not tied and not pair.has_head:
        return missing([pair.head])
    if tied and pair.has_head and "drops" not in kind:
        sentence = f"the model class has no parameter {shown(pair.head)}: it uses the embedding as the head"
        return Refusal(Cause.NAMES, sentence, (pair.head,))
    return None


CONSUMERS = (
    Consumer(
        "mlx-lm",
        "0.32",
        since=(0, 32),
        before=None,
        measured=True,
        cited="mlx-lm 0.32.2, mlx_lm/utils.py, load_model and mlx_lm/models/; ml-explore/mlx-lm#1298",
        load=load,
        ran=("0.32.2",),
    ),
)
