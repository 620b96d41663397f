"""Float64 that stays float64: models that compute a norm or a softmax "in float32" would round it away."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class KeepFloat64(TorchFunctionMode):  # type: ignore[misc]
    """Inside, a float64 tensor asked for as float32 stays what it is.

    Modelling code writes ``x.float()`` and ``softmax(x, dtype=torch.float32)`` to gain precision over 16 bits; on a
    float64 reference the same words would lose it. What starts as float32 or as an integer (rotary angles, T5's
    buckets) is computed as the model defines it.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        named = dict(kwargs or {})
        if args and isinstance(args[0], torch.Tensor) and args[0].dtype is torch.float64:
            if func is torch.Tensor.float:
                return args[0]
            args = tuple(map(_widened, args))
            named = {key: _widened(value) for key, value in named.items()}
        return func(*args, **named)


def _widened(value: Any) -> Any:
    return torch.float64 if value is torch.float32 else value
