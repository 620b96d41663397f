"""Keep float64 values in float64, even in models that compute a norm or a softmax in float32."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class KeepFloat64(TorchFunctionMode):  # type: ignore[misc]
    """A mode in which a cast from float64 to float32 has no effect.

    Modelling code writes ``x.float()`` and ``softmax(x, dtype=torch.float32)`` to gain precision over 16 bits. On a
    float64 reference the same code would lose precision. Values that start as float32 or as integers (rotary angles,
    T5's buckets) are computed as the model defines them.
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
