"""Predict vLLM: before 0.29 only the tie flag decides; from 0.29 on, vLLM first loads and compares a stored head.

A class `ties` by the flag. If it `skips`, it ignores a stored head while tied; other classes load both names into one
tensor. If it `demands` a value of the flag, it asserts that value. An absent weight stays uninitialised without a
message: the check for missing weights ignores every layer with an embedding method.

If any folder has a file named `consolidated*.safetensors`, newer releases load Mistral's own format
(transformers_utils/repo_utils.py, is_mistral_model_repo; model_loader/default_loader.py, _prepare_weights).
"""

from __future__ import annotations

from functools import partial

from tieconv.architectures.flag_levels import reading_v4
from tieconv.checkpoint.files.model_files import Layout
from tieconv.checkpoint.inspection import Inspection
from tieconv.loaders.evidence.pair_model import PairModel
from tieconv.loaders.evidence.unclear import SAFETENSORS, TORCH, known_pair
from tieconv.loaders.evidence.weight_patterns import by_pattern
from tieconv.loaders.interface import Consumer
from tieconv.loaders.loaded import Absence, Cause, Loaded, Refusal, stopped, unknown
from tieconv.text import shown

_LOADER = "vLLM"
_PATTERNS = ("*.safetensors", "*.bin", "*.pt")


def load(inspection: Inspection, *, release: str) -> Loaded:
    """Return the head and the embedding in vLLM's class of the architecture."""
    refusal = _native(inspection) or by_pattern(inspection, _LOADER, (SAFETENSORS, TORCH), *_PATTERNS, indexed=True)
    known = refusal or known_pair(inspection, f"vLLM {release}", f"vllm-{release}")
    if isinstance(known, Refusal):
        return stopped(_LOADER, known)
    kind, pair = known
    refusal = _flag_refused(inspection, kind, release)
    if refusal is not None:
        return stopped(_LOADER, refusal)
    model = PairModel(_LOADER, inspection, pair, has_bias="bias" in kind, absence=Absence.MEMORY)
    if not inspection.config.effective:
        return model.untied()
    return _tied_028(model, skips="skips" in kind) if release == "0.28" else _tied_033(model)


def _native(inspection: Inspection) -> Refusal | None:
    """Return the refusal for a model with files in Mistral's own format, which has other names and settings."""
    checkpoint = inspection.checkpoint
    if not checkpoint.native or checkpoint.layout is Layout.FILE:
        return None
    name, read = shown(checkpoint.native), shown(checkpoint.entry or checkpoint.files[0].name)
    if checkpoint.native in {file.name for file in checkpoint.files}:
        return unknown(f"{name} has Mistral's own format, and tieconv has no measurement of its ties in vLLM")
    return unknown(
        f"{name} exists, so vLLM loads Mistral's own format and reads only consolidated*.safetensors. "
        f"Older releases read {read}, as do all releases with --load-format hf --config-format hf."
    )


def _flag_refused(inspection: Inspection, kind: str, release: str) -> Refusal | None:
    tied = inspection.config.effective
    if release == "0.28" and reading_v4(inspection) not in (None, tied):
        return unknown("transformers 4 and 5 read the tie flag differently, and vLLM 0.28 uses the installed one")
    if "demands" in kind and tied is kind.startswith("demands false"):
        sentence = f"vLLM's class requires tie_word_embeddings to be {'false' if tied else 'true'}"
        return Refusal(Cause.CONFIG, sentence)
    return None


def _tied_028(model: PairModel, *, skips: bool) -> Loaded:
    pair = model.pair
    if skips or pair.has_embedding or not pair.has_head:
        return model.tied(pair.embedding, in_order=not skips)
    return model.tied(pair.head)


def _tied_033(model: PairModel) -> Loaded:
    pair = model.pair
    # vLLM looks only for a head of this name, in safetensors files.
    sought = model.inspection.checkpoint.format == SAFETENSORS and pair.head.endswith("lm_head.weight")
    if pair.has_head and sought and not pair.same:
        return model.untied(if_differ=True)
    if pair.has_head and not pair.has_embedding:
        sentence = f"vLLM skips {shown(pair.head)} in a tied model, and {shown(pair.embedding)} is not stored"
        return stopped(_LOADER, Refusal(Cause.NAMES, sentence, (pair.embedding, pair.head)))
    return model.tied(pair.embedding)


CONSUMERS = (
    Consumer(
        "vllm",
        "<0.29",
        since=(0, 6),
        before=(0, 29),
        measured=True,
        cited="vllm 0.28.0, vllm/model_executor/models/ and model_loader/default_loader.py; vllm-project/vllm#6758",
        load=partial(load, release="0.28"),
        ran=("0.28.0",),
    ),
    Consumer(
        "vllm",
        ">=0.29",
        since=(0, 29),
        before=None,
        measured=True,
        cited="vllm 0.29.0 and 0.33.0, vllm/config/model.py, maybe_untie_word_embeddings; vllm-project/vllm#51665",
        load=partial(load, release="0.33"),
        ran=("0.32.0",),
    ),
)
