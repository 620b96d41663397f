"""vLLM: before 0.29 the flag alone decides, from 0.29 on a stored head is loaded first and compared.

A class `ties` by the flag; one that `skips` leaves a stored head out while tied, the others load both names into one
tensor; one that `demands` a value of the flag asserts it. A weight that the file lacks stays uninitialised without a
word: the check for missing weights leaves out every layer with an embedding method.

A file named `consolidated*.safetensors`, in whatever folder, makes the newer ones load Mistral's own format
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
    """Return what vLLM's own class of the architecture makes of the head and the embedding."""
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
    """Which weights are read where some lie in Mistral's own format: under names and settings that are not HF's."""
    checkpoint = inspection.checkpoint
    if not checkpoint.native or checkpoint.layout is Layout.FILE:
        return None
    name, read = shown(checkpoint.native), shown(checkpoint.entry or checkpoint.files[0].name)
    if checkpoint.native in {file.name for file in checkpoint.files}:
        format_ = f"{name} is of Mistral's own format, which vLLM reads with params.json"
        return unknown(f"{format_}; what it ties there is not known")
    return unknown(
        f"{name} is there too: vLLM takes the model for one of Mistral's own format and its weights from "
        f"consolidated*.safetensors, older releases from {read}, as all do with --load-format hf --config-format hf"
    )


def _flag_refused(inspection: Inspection, kind: str, release: str) -> Refusal | None:
    tied = inspection.config.effective
    if release == "0.28" and reading_v4(inspection) not in (None, tied):
        return unknown("the flag is absent, and which default holds depends on the transformers beside it")
    if "demands" in kind and tied is kind.startswith("demands false"):
        sentence = f"its class asserts that tie_word_embeddings is {'false' if tied else 'true'}"
        return Refusal(Cause.CONFIG, sentence)
    return None


def _tied_028(model: PairModel, *, skips: bool) -> Loaded:
    pair = model.pair
    if skips or pair.has_embedding or not pair.has_head:
        return model.tied(pair.embedding, in_order=not skips)
    return model.tied(pair.head)


def _tied_033(model: PairModel) -> Loaded:
    pair = model.pair
    # Only a head of this name, in safetensors files, is looked for.
    sought = model.inspection.checkpoint.format == SAFETENSORS and pair.head.endswith("lm_head.weight")
    if pair.has_head and sought and not pair.same:
        return model.untied(if_differ=True)
    if pair.has_head and not pair.has_embedding:
        sentence = f"{shown(pair.head)} is skipped as tied, and {shown(pair.embedding)} is not stored"
        return stopped(_LOADER, Refusal(Cause.NAMES, sentence, (pair.embedding, pair.head)))
    return model.tied(pair.embedding)


CONSUMERS = (
    Consumer(
        "vllm",
        "<0.29",
        since=(0, 6),
        before=(0, 29),
        measured=False,
        cited="vllm 0.28.0, vllm/model_executor/models/ and model_loader/default_loader.py; vllm-project/vllm#6758",
        load=partial(load, release="0.28"),
    ),
    Consumer(
        "vllm",
        ">=0.29",
        since=(0, 29),
        before=None,
        measured=False,
        cited="vllm 0.29.0 and 0.33.0, vllm/config/model.py, maybe_untie_word_embeddings; vllm-project/vllm#51665",
        load=partial(load, release="0.33"),
    ),
)
