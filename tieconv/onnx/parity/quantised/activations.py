"""Quantise the activations of the torch model as the operators of a graph do, for the known-good figures."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

_BLOCK, _LARGEST = 32, 127


@contextmanager
def rounded_activations(model: Any, parameters: Collection[str], forms: Collection[str]) -> Iterator[None]:
    """Round the inputs of the modules whose weights are ``parameters``, for the duration of the context.

    ``forms`` has ``tensor`` for the rounding of DynamicQuantizeLinear, and ``block`` for that of MatMulNBits with int8
    activations.
    """
    names = {id(parameter): name for name, parameter in model.named_parameters(remove_duplicate=False)}
    round_ = _by_tensor if "tensor" in forms else _by_block
    modules = [
        module
        for module in model.modules()
        if names.get(id(getattr(module, "weight", None))) in parameters and not hasattr(module, "embedding_dim")
    ]
    hooks = [module.register_forward_pre_hook(_hook(round_)) for module in modules] if forms else []
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _hook(round_: Any) -> Any:
    def hook(_module: Any, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        return (round_(inputs[0]), *inputs[1:])

    return hook


def _by_tensor(values: torch.Tensor) -> torch.Tensor:
    """Round to 256 levels between the smallest and the largest element, and zero."""
    low, high = values.amin().clamp(max=0), values.amax().clamp(min=0)
    scale = (high - low) / 255
    zero = (-low / scale).round()
    return (((values / scale).round() + zero).clamp(0, 255) - zero) * scale


def _by_block(values: torch.Tensor) -> torch.Tensor:
    """Round each 32 elements to 255 levels around zero."""
    width = values.shape[-1]
    filled = torch.nn.functional.pad(values, (0, -width % _BLOCK)).unflatten(-1, (-1, _BLOCK))
    scale = filled.abs().amax(-1, keepdim=True) / _LARGEST
    codes = torch.where(scale > 0, filled / scale, torch.zeros_like(filled)).round()
    return (codes * scale).flatten(-2)[..., :width]
