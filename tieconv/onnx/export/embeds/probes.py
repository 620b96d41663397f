"""Run a loaded model on a few tokens to see what its decoder reads besides `inputs_embeds`."""

from __future__ import annotations

from typing import Any

import torch

from tieconv.checkpoint.value_type import record
from tieconv.onnx.export.embeds.text_part import EMBEDS, refused
from tieconv.onnx.parity.graph.embedding_pair import BLOCKS
from tieconv.reference import Batch, Reference

_TYPES = (0, 1)
"""The values of `token_type_ids`."""


@record
class Reads:
    """What a decoder reads besides the rows.

    ``axes`` is 3 if a position has three numbers (M-RoPE), else 1. ``blocks`` is the argument that lets tokens attend
    to later ones, or empty. ``causal`` is its value for a token that does not.
    """

    axes: int = 1
    blocks: str = ""
    causal: int = 0


def probe(reference: Reference, rows: int) -> Reads:
    """Return what the model reads. ``rows`` is the size of the vocabulary.

    Raises `RefusedError` if the model computes something else from the rows of token ids than from the ids.
    """
    name = type(reference.model).__name__
    ids = torch.randint(0, rows, (2, 9), generator=torch.Generator().manual_seed(1))
    inputs = reference.inputs(Batch(ids, torch.ones_like(ids)))
    by_ids = _logits(reference, inputs)
    if by_ids is None:
        raise refused(name, "does not run on text alone")
    inputs[EMBEDS] = embedded(reference.model, inputs.pop("input_ids"))
    by_rows = _logits(reference, inputs)
    if by_rows is None or not torch.equal(by_ids, by_rows):
        raise refused(name, "computes other logits from the rows of its embedding than from token ids")
    return Reads(_axes(reference, inputs, by_rows), *_blocks(reference, inputs))


def embedded(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """Return the rows that the model's embedding gives for the ids, scaled as its module scales them."""
    with torch.no_grad():
        rows: torch.Tensor = model.get_input_embeddings()(ids)
    return rows


def _logits(reference: Reference, inputs: dict[str, Any]) -> Any:
    """Return the logits, or ``None`` if the model does not take these inputs."""
    try:
        with torch.no_grad():
            return reference.model(**inputs, use_cache=False).logits
    except Exception:  # noqa: BLE001 - a class raises any exception on an argument that it does not take
        return None


def _axes(reference: Reference, inputs: dict[str, Any], before: torch.Tensor) -> int:
    """Return 3 if three equal axes of positions change nothing and three different ones do."""
    positions = inputs.get("position_ids")
    if positions is None:
        return 1
    same = _logits(reference, inputs | {"position_ids": torch.stack([positions] * 3)})
    apart = _logits(reference, inputs | {"position_ids": torch.stack([positions, positions * 2, positions * 3])})
    if same is None or apart is None or not torch.equal(same, before):
        return 1
    return 1 if torch.equal(apart, before) else 3


def _blocks(reference: Reference, inputs: dict[str, Any]) -> tuple[str, int]:
    """Return the argument that changes what a token attends to, and its value for causal attention.

    Without types, some models drop the mask of a batch that has no padding. So both values are tried.
    """
    for name in (name for name in BLOCKS if reference.accepts(name)):
        zeros = torch.zeros(inputs[EMBEDS].shape[:2], dtype=torch.int64)
        made = [_logits(reference, inputs | {name: zeros + value}) for value in _TYPES]
        if any(logits is None for logits in made) or torch.equal(*made):
            continue
        later = inputs | {EMBEDS: torch.cat([inputs[EMBEDS][:, :-1], inputs[EMBEDS][:, :1]], 1)}
        again = [_logits(reference, later | {name: zeros + value}) for value in _TYPES]
        causal = [value for value in _TYPES if torch.equal(made[value][:, 0], again[value][:, 0])]
        if causal == list(_TYPES):  # it changes no mask: GPT-2 adds a row of its embedding for the type
            continue
        if len(causal) == 1:
            return name, causal[0]
        raise refused(type(reference.model).__name__, f"reads {name} in a way that tieconv does not know")
    return "", 0
