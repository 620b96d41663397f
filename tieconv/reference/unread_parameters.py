"""Find the stored tensors that no logit depends on, such as the pooler of an image encoder."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tieconv.reference.encoder_input import EncoderInput
from tieconv.reference.language_part import loaded_names
from tieconv.reference.model import Reference


def stored_unread(reference: Reference, reads: EncoderInput, stored: Iterable[str]) -> tuple[str, ...]:
    """Return the names in ``stored`` that are loaded into a parameter without effect on the logits.

    The forward pass runs once, on features of zeros for the encoder and one decoder token. Its autograd graph leads to
    each parameter that it used; no gradient is computed.
    """
    import torch

    model = reference.model
    asks = {parameter: parameter.requires_grad for parameter in model.parameters()}
    try:
        with torch.inference_mode(False), torch.enable_grad():
            for parameter in asks:
                parameter.requires_grad_(parameter.is_floating_point())
            values = torch.zeros((1, *reads.shape), dtype=model.dtype)
            token = torch.zeros((1, 1), dtype=torch.int64)
            made = reference.call(**{reads.name: values}, decoder_input_ids=token, use_cache=False)
            used = _leaves(made.logits.grad_fn)
    finally:
        for parameter, asked in asks.items():
            parameter.requires_grad_(asked)
    unread = {name for name, parameter in model.named_parameters(remove_duplicate=False) if id(parameter) not in used}
    return tuple(name for name, loaded in loaded_names(model, tuple(stored)).items() if loaded in unread)


def _leaves(result: Any) -> set[int]:
    """Return the identities of the parameters that the autograd graph of a result leads to."""
    leaves, seen, waiting = set(), {None}, [result]
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            leaves.add(id(node.variable))
        waiting.extend(following for following, _ in node.next_functions)
    return leaves
