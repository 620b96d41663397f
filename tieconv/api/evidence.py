"""Collect the evidence about a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tieconv.checkpoint.inspection import Depth, Inspection
from tieconv.live import is_module
from tieconv.opened import inspected, narrowly, opened

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch.nn import Module

    from tieconv.checkpoint.model_files import Checkpoint
    from tieconv.loaders.interface import Consumer
    from tieconv.sources.ranged.ranged_files import Tick


def inspect(
    path: str | Path | Module = ".",
    *,
    depth: Depth | str = Depth.CANDIDATES,
    embed: str | None = None,
    head: str | None = None,
    consumers: str | None = None,
    tick: Tick | None = None,
    ties_only: bool = False,
    bare: bool = False,
    base: str | Path | None = None,
    accept: Callable[[Checkpoint], None] | None = None,
) -> Inspection:
    """Report what MODEL stores, what it ties, what its config declares, and findings with the next command.

    From the Hub and from object stores it downloads headers and samples. With depth ``full`` it downloads every byte
    that a proof needs. It calls ``tick(done, total)`` for each header. With
    ``ties_only`` it skips shards without a tied name: counts cover the other shards, and findings only ties and biases.

    With ``bare`` the tensors of a training checkpoint have the model's names, without the training program's prefixes.

    ``accept`` may refuse the model before a tensor is compared.

    ``base`` is the base model of an adapter: the path in the adapter's config is read only inside MODEL.

    MODEL may also be a `torch.nn.Module`. The report then says which parameters are one object. It also says which
    names `save_pretrained` would write and leave out. The findings are about the file that it would write.

    ``embed`` and ``head`` are the names of the input embedding and the output head of an unknown architecture.
    ``consumers`` selects the loaders to predict, such as ``vllm,transformers>=4.57`` or ``all``. Raises
    `UnreadableError` for missing or malformed input, and `UnknownConsumerError` for an unknown loader.
    """
    if is_module(path):
        return inspect_in_memory(path, depth, embed, head, consumers)
    chosen = _consumers(consumers)
    with opened(str(path), tick) as model:
        if ties_only:
            return narrowly(model, Depth(depth), embed, head)
        named = None if base is None else str(base)
        return inspected(model, Depth(depth), embed, head, chosen, bare=bare, base=named, accept=accept)


def inspect_in_memory(
    module: object, depth: Depth | str, embed: str | None, head: str | None, consumers: str | None
) -> Inspection:
    """Return the evidence about a `torch.nn.Module`; see `inspect`."""
    from tieconv.live.module_inspection import inspect_module  # imports torch

    return inspect_module(module, Depth(depth), embed, head, _consumers(consumers))


def _consumers(spec: str | None) -> tuple[Consumer, ...]:
    if spec is None:
        return ()
    from tieconv.loaders.registry import select

    return select(spec)
