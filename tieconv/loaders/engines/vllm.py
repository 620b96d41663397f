"""Predict vLLM: before 0.29 only the tie flag decides; from 0.29 on, vLLM first loads and compares a stored head.

A class `ties` by the flag, has its `own` head, or always uses the `embedding`. If it `demands` a value of the flag, it
asserts that value. The tables name further properties of a class (fixtures/vllm_classes.py). An absent weight stays
uninitialised without a message: the check for missing weights ignores every layer with an embedding method.

If any folder has a file named `consolidated*.safetensors`, newer releases load Mistral's own format
(transformers_utils/repo_utils.py, is_mistral_model_repo; model_loader/default_loader.py, _prepare_weights).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.model_files import TWO_FORMATS, Layout
from tieconv.loaders import release_tables
from tieconv.loaders.engines.vllm_tables import Tables
from tieconv.loaders.evidence.head_pair import stored_bias
from tieconv.loaders.evidence.pair_model import PairModel
from tieconv.loaders.evidence.unclear import SAFETENSORS, TORCH, known_pair
from tieconv.loaders.evidence.weight_patterns import by_pattern
from tieconv.loaders.interface import Consumer
from tieconv.loaders.loaded import Absence, Cause, Loaded, Refusal, stopped, unknown
from tieconv.loaders.transformers.unclear5 import flag_refusals
from tieconv.text import shown

_LOADER = "vLLM"
_PATTERNS = ("*.safetensors", "*.bin", "*.pt")


def load(inspection: Inspection, *, release: str) -> Loaded:
    """Return the head and the embedding in vLLM's class of the architecture."""
    inspection = _safetensors_first(inspection)
    refusal = _native(inspection) or next(_class_refused(inspection, release), None)
    refusal = refusal or by_pattern(inspection, _LOADER, (SAFETENSORS, TORCH), *_PATTERNS, indexed=True)
    known = refusal or known_pair(inspection, f"vLLM {release}", f"vllm-{release}")
    if isinstance(known, Refusal):
        return stopped(_LOADER, known)
    kind, pair = known
    model = PairModel(_LOADER, inspection, pair, has_bias=_has_bias(inspection, kind), absence=Absence.MEMORY)
    tables = Tables(model, kind)
    return tables.loaded_028() if release == "0.28" else tables.loaded_033()


def _has_bias(inspection: Inspection, kind: str) -> bool:
    """Return whether the logits get the bias; vLLM's Transformers backend looks for one name."""
    stored = stored_bias(inspection)
    return "bias" in kind and ("any bias" not in kind or all(name.endswith("lm_head.bias") for name in stored))


def _safetensors_first(inspection: Inspection) -> Inspection:
    """Return the inspection without the caution about a second format: vLLM reads torch files only without others."""
    checkpoint = inspection.checkpoint
    if checkpoint.format != SAFETENSORS:
        return inspection
    cautions = tuple(caution for caution in checkpoint.cautions if caution.code != TWO_FORMATS)
    return replace(inspection, checkpoint=replace(checkpoint, cautions=cautions))


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


def _class_refused(inspection: Inspection, release: str) -> Iterator[Refusal]:
    """Yield why vLLM cannot build the model, whatever its weights are."""
    checkpoint, family = inspection.checkpoint, inspection.family
    if checkpoint.layout is Layout.FILE or checkpoint.config is None or checkpoint.adapter is not None:
        return
    data = f"vllm-{release}"
    if family.architecture in release_tables.names(data, "fails"):
        yield Refusal(Cause.CONFIG, f"vLLM {release} cannot run {shown(family.architecture)}")
    key = release_tables.by_type(data, "needs key").get(family.architecture)
    if key is not None and key not in checkpoint.config_values:
        yield Refusal(Cause.CONFIG, f"vLLM's class reads {key} from the config, which does not declare it")
    wrong = _wrong_size(inspection, release_tables.by_type(data, "fixed size").get(family.architecture))
    if wrong is not None:
        yield wrong
    own = family.model_type in release_tables.names(data, "own config")
    for refusal in () if own else flag_refusals(inspection):
        yield replace(refusal, sentence=f"vLLM reads the config with transformers 5, and {refusal.sentence}")


def _wrong_size(inspection: Inspection, rule: tuple[str, int, str] | None) -> Refusal | None:
    """Return the refusal of a size that vLLM's class computes and does not read from the config."""
    if rule is None:
        return None
    key, factor, base = rule
    config = inspection.checkpoint.config_values
    size, expected = config.get(key), config.get(base)
    if not isinstance(size, int) or not isinstance(expected, int) or size == factor * expected:
        return None
    sentence = f"vLLM's class uses {factor} times {base}, and the config declares {key} {size:,}"
    return Refusal(Cause.CONFIG, sentence)


CONSUMERS = (
    Consumer(
        "vllm",
        "<0.29",
        since=(0, 6),
        before=(0, 29),
        cited="vllm 0.28.0, vllm/model_executor/models/ and model_loader/default_loader.py; vllm-project/vllm#6758",
        load=partial(load, release="0.28"),
        own_rows=True,
        ran=("0.28.0",),
    ),
    Consumer(
        "vllm",
        ">=0.29",
        since=(0, 29),
        before=None,
        cited="vllm 0.29.0 and 0.33.0, vllm/config/model.py, maybe_untie_word_embeddings; vllm-project/vllm#51665",
        load=partial(load, release="0.33"),
        own_rows=True,
        ran=("0.32.0",),
    ),
)
