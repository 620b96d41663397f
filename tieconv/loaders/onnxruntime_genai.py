"""The model builder of onnxruntime-genai: loads with transformers, then shares the head's matrix where tied."""

from __future__ import annotations

from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.prediction import Outcome
from tieconv.loaders import questions as facts
from tieconv.loaders import release_tables
from tieconv.loaders.interface import Consumer, Verdict, unknown
from tieconv.loaders.questions import verdict
from tieconv.loaders.transformers import judge5
from tieconv.text import shown


def judge(inspection: Inspection) -> Verdict:
    """What the exported graph uses, with transformers 5 beside the builder and no extra options."""
    found = judge5.judge(inspection)
    if inspection.checkpoint.config is None or not inspection.family.architecture:
        return found
    if inspection.family.architecture not in release_tables.names("onnxruntime-genai", "read"):
        return unknown(f"what the builder does with {facts.class_name(inspection)} is not known")
    pair = facts.pair(inspection)
    shares = inspection.checkpoint.config_values.get(facts.FLAG) is True
    if pair is None or found.outcome is not Outcome.UNTIED or not shares:
        return found
    # Both were loaded, and the graph gathers from the head's matrix.
    detail = f"{shown(pair.embedding)} is replaced by {shown(pair.head)}, which the flag makes the graph share"
    return verdict(Outcome.DISCARDED, detail, (pair.embedding,), found.dropped)


CONSUMERS = (
    Consumer(
        "onnxruntime-genai",
        "0.18",
        since=(0, 18),
        before=None,
        measured=False,
        cited="onnxruntime-genai 0.18.0, models/builder.py and builders/base.py; microsoft/onnxruntime-genai#2306",
        judge=judge,
    ),
)
