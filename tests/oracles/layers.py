"""What a model gives to a layer, and parameters that are NaN until they are loaded: for the programs of engines."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any


class SeenError(Exception):
    """Ends the call of a layer once its arguments are stored."""


class Calls(list):  # type: ignore[type-arg]
    """The arguments of each call, and the layers that were called."""

    def __init__(self) -> None:
        super().__init__()
        self.owners: list[Any] = []


@contextlib.contextmanager
def caught(layer: type) -> Iterator[Calls]:
    """Replace the layer's forward pass by one that stores its arguments and stops."""
    calls, forward = Calls(), layer.forward  # type: ignore[attr-defined]

    def stored(self: Any, *arguments: Any, **options: Any) -> Any:
        calls.append((arguments, options))
        calls.owners.append(self)
        raise SeenError

    layer.forward = stored  # type: ignore[attr-defined]
    try:
        yield calls
    finally:
        layer.forward = forward  # type: ignore[attr-defined]


def starting_with_nan(initialise: Callable[..., Any]) -> Callable[..., Any]:
    """The function that makes a model, with each parameter NaN."""

    def filled(*arguments: Any, **options: Any) -> Any:
        model = initialise(*arguments, **options)
        for tensor in model.parameters():
            if tensor.is_floating_point() and tensor.device.type != "meta":
                tensor.data.fill_(float("nan"))
        return model

    return filled


def rows(tensor: Any, count: int) -> Any:
    """Return the first ``count`` rows as numbers; the others pad the vocabulary."""
    return tensor.detach()[:count].float().cpu().numpy()
