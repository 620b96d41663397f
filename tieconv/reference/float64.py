"""Keep float64 values in float64, even in models that compute a norm or a softmax in float32."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
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


# Compute in float64 with a float32 model, without a second copy of all its weights.


@contextmanager
def widened(model: Any) -> Iterator[Callable[[], None]]:
    """Let a float32 ``model`` compute in float64 in this context. Yields a function that widens all weights at once.

    A layer has float64 weights only while it runs, and so has each module outside of the layers. An embedding gives
    float64 rows, and a head widens a few rows at a time. Every float32 number is exact in float64. Buffers keep their
    type, as in a float64 model.
    """
    narrow: dict[Any, Any] = {}
    unused: dict[Any, list[Any]] = {}  # float64 tensors by shape: the next layer takes those of the last

    def widen(parameters: Iterable[Any]) -> None:
        with torch.inference_mode(False), torch.no_grad():
            for parameter in parameters:
                if parameter.dtype is torch.float32:
                    narrow[parameter] = parameter.data
                    ready = unused.get(parameter.shape)
                    wide = ready.pop() if ready else torch.empty_like(parameter.data, dtype=torch.float64)
                    parameter.data = wide.copy_(parameter.data)

    def enter(module: Any, inputs: Sequence[Any]) -> None:
        if any(isinstance(value, torch.Tensor) and value.dtype is torch.float32 for value in inputs[:1]):
            raise TypeError("the values before this layer are float32")
        widen(module.parameters())

    def restore(parameters: Iterable[Any]) -> None:
        for parameter in parameters:
            if parameter in narrow:
                unused.setdefault(parameter.shape, []).append(parameter.data)
                parameter.data = narrow.pop(parameter)

    def widen_all() -> None:
        hooks.close()
        widen(model.parameters())

    with ExitStack() as hooks:
        for module, whole in _units(model):
            if type(module) is torch.nn.Embedding:
                made = [module.register_forward_hook(lambda _module, _inputs, rows: rows.double())]
            elif type(module) is torch.nn.Linear and whole and module.weight.numel() > _BLOCK:
                module.forward = partial(_by_rows, module)
                hooks.callback(vars(module).pop, "forward")
                continue
            elif whole:
                leave = module.register_forward_hook(lambda module, *_: restore(module.parameters()))
                made = [module.register_forward_pre_hook(enter), leave]
            else:
                widen(module.parameters(recurse=False))
                continue
            for hook in made:
                hooks.callback(hook.remove)
        try:
            yield widen_all
        finally:
            restore(list(narrow))


_BLOCK = 1 << 22
"""Weights of a head in float64 at a time."""


def _by_rows(module: Any, values: Any) -> Any:
    """Return what a float32 linear module gives in float64."""
    rows = module.out_features
    made = values.new_empty((*values.shape[:-1], rows))
    step = max(_BLOCK // module.in_features, 1)
    for first in range(0, rows, step):
        block = slice(first, first + step)
        bias = None if module.bias is None else module.bias[block].double()
        made[..., block] = torch.nn.functional.linear(values, module.weight[block].double(), bias)
    return made


def _units(module: Any) -> Iterator[tuple[Any, bool]]:
    """Yield the layers and the modules outside of them, and whether a module is widened with all its parts."""
    children = list(module.children())
    yield module, not children
    for child in children:
        if isinstance(child, torch.nn.ModuleList):
            yield from ((layer, True) for layer in child)
        else:
            yield from _units(child)
