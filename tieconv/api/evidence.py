"""What a model is: the evidence about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tieconv.checkpoint.inspection import Depth, Inspection
from tieconv.opened import inspected, narrowly, opened

if TYPE_CHECKING:
    from pathlib import Path

    from tieconv.loaders.interface import Consumer
    from tieconv.sources.hub.files import Tick


def inspect(
    path: str | Path = ".",
    *,
    depth: Depth | str = Depth.CANDIDATES,
    embed: str | None = None,
    head: str | None = None,
    consumers: str | None = None,
    tick: Tick | None = None,
    ties_only: bool = False,
) -> Inspection:
    """What MODEL stores, what ties, what the config declares, and findings with the next command.

    Of a model on the Hub (``hf://org/name@revision``) headers and samples are fetched, and with ``full`` every byte
    that a proof needs; ``tick(done, total)`` is told of headers that arrive. With ``ties_only`` shards that hold no
    tied name are left out: counts are then of the others, and of the findings those about ties and biases are given.

    ``embed`` and ``head`` name the input and the output embedding of an unknown architecture. ``consumers`` names the
    loaders to predict, such as ``vllm,transformers>=4.57`` or ``all``. Raises `UnreadableError` for input that is
    missing or malformed, `UnknownConsumerError` for a loader that is not known.
    """
    chosen = _consumers(consumers)
    with opened(str(path), tick) as model:
        if ties_only:
            return narrowly(model, Depth(depth), embed, head)
        return inspected(model, Depth(depth), embed, head, chosen)


def _consumers(spec: str | None) -> tuple[Consumer, ...]:
    if spec is None:
        return ()
    from tieconv.loaders.selection import select

    return select(spec)
