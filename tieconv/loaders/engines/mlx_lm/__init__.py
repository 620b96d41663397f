"""Predict mlx-lm: one source file for each model type, and strict about names and shapes.

The tables ``mlx-lm-RELEASE`` list the kind of each file. A type follows the `flag` (with a default, or `required`).
While tied, it `drops` a stored head or refuses it. Other types have their `own` head, always use the `embedding`, or
are tied exactly if no head is stored (`if stored`). A type that has the head `always` loads it and may not use it.
"""

from __future__ import annotations

from functools import partial

from tieconv.architectures.effective_flag import FLAG
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.quantised_matrix import quantised_twin
from tieconv.loaders.engines.mlx_lm.model_config import TextModel, config_refused, text_model
from tieconv.loaders.engines.mlx_lm.tensor_names import names_refused, other_spelling, shapes_refused
from tieconv.loaders.evidence.head_pair import Pair, in_file, listed, stored_bias
from tieconv.loaders.evidence.pair_model import PairModel
from tieconv.loaders.evidence.unclear import SAFETENSORS, known_pair
from tieconv.loaders.evidence.weight_patterns import by_pattern, with_unused_files
from tieconv.loaders.interface import Consumer
from tieconv.loaders.loaded import Cause, Loaded, Refusal, missing, stopped
from tieconv.text import shown

_LOADER = "mlx-lm"
_PATTERN = "model*.safetensors"
_PARTS = ("scales", "biases")


def load(inspection: Inspection, *, release: str) -> Loaded:
    """Return the head and the embedding in mlx-lm's model."""
    codes = all(_is_mlx(inspection, name) for name in _quantised(inspection))
    refusal = by_pattern(inspection, _LOADER, (SAFETENSORS,), _PATTERN, prefers=True, joined=True, codes=codes)
    if refusal is not None:
        return stopped(_LOADER, refusal)
    read = with_unused_files(inspection, _PATTERN)
    text = text_model(read, release)
    if isinstance(text, Refusal):
        return stopped(_LOADER, text)
    refusal = config_refused(text) or names_refused(read, text)
    known = refusal or known_pair(read, f"{_LOADER} {release}", text.tables, text.name)
    if isinstance(known, Refusal):
        return stopped(_LOADER, known)
    kind, pair = known
    tied = _is_tied(text, kind, pair)
    refusal = _head_refused(read, kind, pair, tied) or shapes_refused(read, text, pair, tied="drops" in kind and tied)
    if refusal is not None:
        return stopped(_LOADER, refusal)
    model = PairModel(_LOADER, read, pair, has_bias="bias" in kind)
    return model.tied(pair.embedding) if tied else model.untied()


def _quantised(inspection: Inspection) -> list[str]:
    """Return the file names of the tables that are stored as codes, quantised by any program."""
    family, tensors = inspection.family, inspection.checkpoint.tensors
    names = (in_file(inspection, name) for name in (family.input_embedding, family.output_head) if name)
    return [name for name in names if quantised_twin(name, tensors) is not None]


def _is_mlx(inspection: Inspection, name: str) -> bool:
    """Return whether a table has codes of MLX: 32-bit words under the matrix's own name, beside their scales."""
    tensors = inspection.checkpoint.tensors
    return name in tensors and tensors[name].dtype == "U32" and f"{name.removesuffix('weight')}scales" in tensors


def _is_tied(text: TextModel, kind: str, pair: Pair) -> bool | None:
    """Return whether the head is the embedding; ``None`` if the config lacks a flag that the model requires."""
    if kind == "if stored":
        return not pair.has_head
    if not kind.startswith("flag"):
        return kind == "embedding"
    if FLAG in text.config:
        return bool(text.config[FLAG])
    return None if "required" in kind else "default true" in kind


def _head_refused(inspection: Inspection, kind: str, pair: Pair, tied: bool | None) -> Refusal | None:
    bias, tensors = stored_bias(inspection), inspection.checkpoint.tensors
    if not pair.has_embedding:
        return other_spelling(inspection, pair) or missing([pair.embedding])
    if bias and "bias" not in kind:
        return Refusal(Cause.NAMES, f"the model class has no parameter {listed(bias)}", bias)
    if not bias and "bias" in kind:
        return missing([f"{pair.head.removesuffix('.weight')}.bias"])
    if tied is None:
        return Refusal(Cause.CONFIG, f"the config has no {FLAG}, and the model class requires it")
    if not pair.has_head and (not tied or "always" in kind):
        return missing([pair.head])
    parts = tuple(part for end in _PARTS if (part := f"{pair.head.removesuffix('weight')}{end}") in tensors)
    if tied and parts and "drops" in kind:
        # sanitize drops only the tensor named .weight
        return Refusal(Cause.NAMES, f"a tied model class has no parameter {listed(parts)}", parts)
    if tied and pair.has_head and not any(word in kind for word in ("drops", "always")):
        sentence = f"the model class has no parameter {shown(pair.head)}: it uses the embedding as the head"
        return Refusal(Cause.NAMES, sentence, (pair.head,))
    return None


CONSUMERS = (
    Consumer(
        "mlx-lm",
        "<0.32",
        since=(0, 28),
        before=(0, 32),
        cited="mlx-lm 0.28.4, mlx_lm/utils.py, load_model and mlx_lm/models/",
        load=partial(load, release="0.28"),
        ran=("0.28.4",),
        own_rows=True,
    ),
    Consumer(
        "mlx-lm",
        "0.32",
        since=(0, 32),
        before=None,
        cited="mlx-lm 0.32.2, mlx_lm/utils.py, load_model and mlx_lm/models/; ml-explore/mlx-lm#1298",
        load=partial(load, release="0.32"),
        ran=("0.32.2",),
        own_rows=True,
    ),
)
