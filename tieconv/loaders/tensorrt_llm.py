"""TensorRT-LLM: its engine builder ties whatever is missing, its PyTorch backend goes by the flag."""

from __future__ import annotations

from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.prediction import Outcome
from tieconv.loaders import questions as facts
from tieconv.loaders import release_tables
from tieconv.loaders import weight_files as files
from tieconv.loaders.interface import Consumer, Verdict, unknown
from tieconv.loaders.questions import Pair, verdict
from tieconv.text import shown


def _unclear(inspection: Inspection) -> Verdict | None:
    found = files.by_pattern(
        inspection, "TensorRT-LLM", (facts.SAFETENSORS, facts.TORCH), "*.safetensors", "*.bin", "*.pth"
    )
    if found is None and (
        inspection.family.architecture not in release_tables.names("tensorrt-llm", "read")
        or facts.pair(inspection) is None
    ):
        return unknown(f"what TensorRT-LLM does with {facts.class_name(inspection)} is not known")
    return found


def engine(inspection: Inspection) -> Verdict:
    """`ModelWeightsLoader`: both names where both are stored, else the one for both, without a word."""
    found, pair = _unclear(inspection), facts.pair(inspection)
    if found is not None or pair is None:
        return found or unknown("the table does not name both the embedding and the head")
    if facts.class_bias(inspection):
        return unknown("what becomes of a head bias is not known")
    names = (pair.head, pair.embedding)
    if pair.has_head and pair.has_embedding:
        return verdict(Outcome.UNTIED, facts.separate(pair), names)
    if not pair.has_head and not pair.has_embedding:
        return unknown("what becomes of a model without either name is not known")
    kept, other = names if pair.has_head else names[::-1]
    return verdict(
        Outcome.TIED, f"{shown(other)} is not stored and becomes {shown(kept)}, whatever the flag says", names
    )


def pytorch(inspection: Inspection) -> Verdict:
    """`DecoderModelForCausalLM`: a tied head is the embedding, and a stored one is skipped."""
    found, pair = _unclear(inspection), facts.pair(inspection)
    if found is not None or pair is None:
        return found or unknown("the table does not name both the embedding and the head")
    if facts.flags_agree(inspection) is None:
        return unknown("the flag is absent, and which default holds depends on the transformers beside it")
    if facts.class_bias(inspection):
        return unknown("what becomes of a head bias is not known")
    return _by_flag(pair, inspection.config.effective)


def _by_flag(pair: Pair, tied: bool) -> Verdict:
    names = (pair.head, pair.embedding)
    if not pair.has_embedding or (not tied and not pair.has_head):
        return unknown("what becomes of a name that is not stored is not known")
    if not tied:
        return verdict(Outcome.UNTIED, facts.separate(pair), names)
    if pair.has_head and not pair.same:
        if pair.same is None:
            return unknown(f"{shown(pair.head)} was not compared with {shown(pair.embedding)}")
        return verdict(Outcome.DISCARDED, f"{shown(pair.head)} is skipped", (pair.head,))
    return verdict(Outcome.TIED, facts.tied(pair), names)


CONSUMERS = (
    Consumer(
        "tensorrt-llm",
        "engine",
        since=(0, 12),
        before=(1, 0),
        measured=False,
        cited="NVIDIA/TensorRT-LLM#3324, models/model_weights_loader.py, ModelWeightsLoader.update_key_mapping",
        judge=engine,
    ),
    Consumer(
        "tensorrt-llm",
        "pytorch",
        since=(1, 0),
        before=None,
        measured=False,
        cited="TensorRT-LLM, _torch/models/modeling_utils.py and checkpoints/hf/weight_mapper.py, should_skip_module",
        judge=pytorch,
    ),
)
