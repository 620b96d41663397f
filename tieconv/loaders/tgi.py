"""text-generation-inference: the flag says under which name the head is looked for."""

from __future__ import annotations

from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.prediction import Outcome
from tieconv.loaders import questions as facts
from tieconv.loaders import release_tables
from tieconv.loaders import weight_files as files
from tieconv.loaders.interface import Consumer, Verdict, error, unknown
from tieconv.loaders.questions import Pair, verdict
from tieconv.text import shown


def judge(inspection: Inspection) -> Verdict:
    """What the flash model of the architecture does with the head and the embedding."""
    found = files.by_pattern(
        inspection, "text-generation-inference", (facts.SAFETENSORS, facts.TORCH), "*.safetensors", "*.bin"
    )
    if found is not None:
        return found
    architecture, pair = inspection.family.architecture, facts.pair(inspection)
    if architecture not in release_tables.names("text-generation-inference", "read") or pair is None:
        return unknown(f"what text-generation-inference does with {facts.class_name(inspection)} is not known")
    if facts.flags_agree(inspection) is None:
        return unknown("the flag is absent, and which default holds depends on the transformers beside it")
    if facts.class_bias(inspection):
        return unknown("what becomes of a head bias is not known")
    return _head(pair, inspection.config.effective)


def _head(pair: Pair, tied: bool) -> Verdict:
    if not pair.has_embedding:
        return error(f"{shown(pair.embedding)} does not exist", pair.embedding)
    if not tied and not pair.has_head:
        return error(f"{shown(pair.head)} does not exist", pair.head)
    if not tied:
        return verdict(Outcome.UNTIED, facts.separate(pair), (pair.head, pair.embedding))
    if pair.has_head and not pair.same:
        if pair.same is None:
            return unknown(f"{shown(pair.head)} was not compared with {shown(pair.embedding)}")
        return verdict(Outcome.DISCARDED, f"{shown(pair.head)} is not looked for", (pair.head,))
    return verdict(Outcome.TIED, facts.tied(pair), (pair.head, pair.embedding))


CONSUMERS = (
    Consumer(
        "text-generation-inference",
        "3.x",
        since=(3, 0),
        before=None,
        measured=False,
        cited="huggingface/text-generation-inference#2918; its flash_llama_modeling.py and flash_qwen2_modeling.py",
        judge=judge,
    ),
)
