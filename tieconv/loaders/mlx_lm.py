"""mlx-lm: each model's file has its own default of the flag, and loading is strict about names.

A type goes by the `flag` (with a default, or `required`), and `drops` a stored head while tied or stops at it; it has
its `own` head in any case; or it always takes the `embedding`.
"""

from __future__ import annotations

from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.prediction import Outcome
from tieconv.loaders import questions as facts
from tieconv.loaders import release_tables
from tieconv.loaders import weight_files as files
from tieconv.loaders.interface import Consumer, Verdict, error, unknown
from tieconv.loaders.questions import Pair, listed, verdict
from tieconv.text import shown


def judge(inspection: Inspection) -> Verdict:
    """What mlx-lm's own model does with the head and the embedding."""
    found = files.by_pattern(inspection, "mlx-lm", (facts.SAFETENSORS,), "model*.safetensors")
    if found is not None:
        return found
    model_type = inspection.family.model_type
    kind, pair = (
        release_tables.kind("mlx-lm", release_tables.by_type("mlx-lm", "same file").get(model_type, model_type)),
        facts.pair(inspection),
    )
    if kind is None or pair is None:
        return unknown(f"what mlx-lm does with {_kind(model_type)} is not known")
    if not pair.has_embedding:
        return error(f"{shown(pair.embedding)} is missing from the file", pair.embedding)
    bias = facts.stored_bias(inspection)
    if bias and "bias" not in kind:
        return error(f"{listed(bias)} is not in the model", *bias)
    return _head(inspection, kind, pair)


def _kind(model_type: str) -> str:
    return f"models of type {shown(model_type)}" if model_type else "a model whose config names no type"


def _head(inspection: Inspection, kind: str, pair: Pair) -> Verdict:
    tied = _tied(inspection, kind)
    if tied is None:
        return error("the config has no tie_word_embeddings, and the model requires it")
    if not tied:
        if not pair.has_head:
            return error(f"{shown(pair.head)} is missing from the file", pair.head)
        return verdict(Outcome.UNTIED, facts.separate(pair), (pair.head, pair.embedding))
    if pair.has_head and "drops" not in kind:
        return error(f"{shown(pair.head)} is not in the model, which takes the embedding for the head", pair.head)
    if pair.has_head and not pair.same:
        if pair.same is None:
            return unknown(f"{shown(pair.head)} was not compared with {shown(pair.embedding)}")
        return verdict(Outcome.DISCARDED, f"{shown(pair.head)} is left out", (pair.head,))
    return verdict(Outcome.TIED, facts.tied(pair), (pair.head, pair.embedding))


def _tied(inspection: Inspection, kind: str) -> bool | None:
    if not kind.startswith("flag"):
        return kind == "embedding"
    values = inspection.checkpoint.config_values
    if facts.FLAG in values:
        return bool(values[facts.FLAG])
    return None if "required" in kind else "default true" in kind


CONSUMERS = (
    Consumer(
        "mlx-lm",
        "0.32",
        since=(0, 32),
        before=None,
        measured=False,
        cited="mlx-lm 0.32.2, mlx_lm/utils.py, load_model and mlx_lm/models/; ml-explore/mlx-lm#1298",
        judge=judge,
    ),
)
