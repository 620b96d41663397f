"""Collect the evidence about a model."""

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
    bare: bool = False,
) -> Inspection:
    """Report what MODEL stores, what it ties, what its config declares, and findings with the next command.

    From the Hub (``hf://org/name@revision``) it downloads headers and samples, with depth ``full`` every byte that a
    proof needs. It calls ``tick(done, total)`` for each header. With ``ties_only`` it skips shards without a tied name:
    counts cover the other shards, and findings only ties and biases.

    With ``bare`` the tensors of a training checkpoint have the model's names, without the training program's prefixes.
    ``embed`` and ``head`` are the names of the input embedding and the output head of an unknown architecture.
    ``consumers`` selects the loaders to predict, such as ``vllm,transformers>=4.57`` or ``all``. Raises
    `UnreadableError` for missing or malformed input, and `UnknownConsumerError` for an unknown loader.
    """
    chosen = _consumers(consumers)
    with opened(str(path), tick) as model:
        if ties_only:
            return narrowly(model, Depth(depth), embed, head)
        return inspected(model, Depth(depth), embed, head, chosen, bare=bare)


def _consumers(spec: str | None) -> tuple[Consumer, ...]:
    if spec is None:
        return ()
    from tieconv.loaders.selection import select

    return select(spec)
