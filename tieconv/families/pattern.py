"""Guess the input embedding and the output head of an unknown architecture from names and shapes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

# Path endings in the order of how surely they mean the tensor; counts of the 375 measured classes.
_INPUTS = (
    r"embed_tokens(\.0|\.embed_tokens)?|word_embeddings|wte",  # 238, 75, 8
    r"shared|tok_embeddings|tokens_embed|word_embedding|token_embedding|input_embedding|embed_in",
    r"embeddings?|embed|w",
)
_HEADS = (
    r"lm_head(\.decoder|\.out_proj)?|generator_lm_head|predictions\.decoder|lm_heads\.0",
    r"embed_out|output_projection|vocab_projector|lm_loss|pred_layer\.proj|unembed|proj_out|log_softmax\.mlp\.layer0",
    r"output|head(\.decoder)?|decoder|cls",
)
# Whole path segments of towers that have token tables of their own. Whole, because a substring such as
# "lang" would also hide ``language_model``.
_ELSEWHERE = frozenset(
    (
        "vision_tower",
        "vision_model",
        "visual",
        "vision",
        "audio_tower",
        "audio_model",
        "audio",
        "image_encoder",
        "speech_encoder",
        "qformer",
        "patcher",
        "codec",
        "entity_embeddings",
        "position_embeddings",
        "wpe",
        "embed_positions",
        "depth_decoder",
        "dit",
        "protein_encoder",
        "embed_tokens_per_layer",
        "token_type_embeddings",
        "vqmodel",
        "vq_model",
        "text_encoder",
        "audio_encoder",
        "t2u_model",
        "vocoder",
    )
)

Shapes = Mapping[str, tuple[int, ...]]


def guess(names: Shapes, vocabulary: int | None = None) -> tuple[str | None, str | None]:
    """Names of the input embedding and of the output head; ``None`` where nothing looks like one.

    ``vocabulary`` (tokens, from the config) breaks ties between tables; padded tables may be larger.
    """
    embedding = _best(names, _INPUTS, vocabulary, None)
    shape = names[embedding] if embedding else None
    head = _best(names, _HEADS, vocabulary, shape)
    if head is not None and head == embedding:
        head = None
    return embedding, head


def biases(names: Shapes, head: str | None) -> tuple[str, ...]:
    """Output biases beside a head, and logit-bias rows; the outer name of an aliased pair first."""
    found = []
    if head is not None:
        outer = head.removesuffix(".decoder.weight") + ".bias"
        inner = head.removesuffix("weight") + "bias"
        found = [name for name in (outer, inner) if names.get(name, ())[:1] == names.get(head, (0,))[:1]]
    found += [name for name in names if name.split(".")[-1] == "final_logits_bias"]
    return tuple(dict.fromkeys(found))


def _best(names: Shapes, endings: tuple[str, ...], vocabulary: int | None, like: tuple[int, ...] | None) -> str | None:
    """The surest candidate: by ending, then by fit to the vocabulary and shape, then the shortest path."""
    ranked = []
    for name, shape in names.items():
        if len(shape) != 2 or not name.endswith(".weight"):
            continue
        rank = _rank(name.removesuffix(".weight"), endings)
        if rank is None or _ELSEWHERE & set(name.split(".")):
            continue
        if like is not None and shape[0] != like[0] and rank > 0:
            continue  # a vague name needs the vocabulary's size
        misfit = (shape[0] != vocabulary if vocabulary else 0) + (like is not None and shape != like)
        ranked.append((misfit, rank, "encoder" in name.split("."), name.count("."), name))
    return min(ranked)[-1] if ranked else None


def _rank(path: str, endings: tuple[str, ...]) -> int | None:
    return next((place for place, ending in enumerate(_compiled(endings)) if ending.search(path)), None)


@cache
def _compiled(endings: tuple[str, ...]) -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(rf"(?:^|\.)(?:{ending})$") for ending in endings)
