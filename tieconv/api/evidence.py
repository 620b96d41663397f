"""Collect the evidence about a model, and compare two models."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tieconv.checkpoint.inspection import Depth, Inspection
from tieconv.checkpoint.value_type import strings
from tieconv.errors import RefusedError, UnreadableError
from tieconv.formats import holds_graphs
from tieconv.live import is_module
from tieconv.opened import inspected, narrowly, opened, refuse_far_graphs, tensor_reader
from tieconv.sources import is_remote
from tieconv.sources.local import locate
from tieconv.text import Hint, call, count, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from torch.nn import Module

    from tieconv.checkpoint.model_files import Checkpoint
    from tieconv.checkpoint.results.comparison import Comparison
    from tieconv.loaders.interface import Consumer
    from tieconv.sources.ranged import Tick


# Collect the evidence about a model.


def inspect(
    path: str | Path | Module = ".",
    *,
    depth: Depth | str = Depth.CANDIDATES,
    embed: str | None = None,
    head: str | None = None,
    consumers: str | Sequence[str] | None = None,
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

    ``accept`` may refuse the model before a tensor is compared. The rules are then not applied.

    ``base`` is the base model of an adapter: the path in the adapter's config is read only inside MODEL.

    MODEL may also be a `torch.nn.Module`. The report then says which parameters are one object. It also says which
    names `save_pretrained` would write and leave out. The findings are about the file that it would write.

    ``embed`` and ``head`` are the names of the input embedding and the output head of an unknown architecture.
    ``consumers`` selects the loaders to predict, such as ``vllm,transformers>=4.57`` or ``all``; a list of such strings
    too. Raises `UnreadableError` for missing or malformed input, and `UnknownConsumerError` for an unknown loader.
    """
    if is_module(path):
        return inspect_in_memory(path, depth, embed, head, consumers)
    chosen = _consumers(consumers)
    with opened(os.fspath(path), tick) as model:
        if ties_only:
            return narrowly(model, Depth(depth), embed, head)
        named = None if base is None else str(base)
        return inspected(model, Depth(depth), embed, head, chosen, bare=bare, base=named, accept=accept)


def inspect_in_memory(
    module: object, depth: Depth | str, embed: str | None, head: str | None, consumers: str | Sequence[str] | None
) -> Inspection:
    """Return the evidence about a `torch.nn.Module`; see `inspect`."""
    from tieconv.live.module_inspection import inspect_module  # imports torch

    return inspect_module(module, Depth(depth), embed, head, _consumers(consumers))


def _consumers(spec: str | Sequence[str] | None) -> tuple[Consumer, ...]:
    parts = () if spec is None else strings("consumers", spec)
    if not parts:
        return ()
    from tieconv.loaders.registry import select

    return select(",".join(parts))


def is_graph(path: str | Path = ".") -> bool:
    """Return whether MODEL is an ONNX graph or a directory of graphs, which have separate functions.

    Return false for a remote model, of which tieconv reads only checkpoints.
    """
    return not is_remote(os.fspath(path)) and holds_graphs(locate(os.fspath(path)))


def refuse_graphs(*paths: str | Path) -> None:
    """Raise `UnreadableError` if a path is an ONNX graph or a directory of graphs."""
    for path in paths:
        if is_graph(path):
            name = shown(os.path.basename(os.path.abspath(path)))
            problem = f"{name} is an ONNX graph, and this command reads only checkpoints"
            raise UnreadableError(problem, _OF_GRAPHS, "format.unsupported")


_WRITING = Hint("dedup and untie", python="plan_graph_dedup and plan_graph_untie")
_READ = Hint(call("inspect"), ", check, ", _WRITING, " read graphs")
_OF_GRAPHS = Hint(_READ, "; ", call("parity"), " compares them with checkpoints")

# Compare two models.


MAX_COMPARED = 250_000
"""Most tensors and torch storages of one model. Two such models and their differences take 300 MiB."""
_ONE_BY_ONE = Hint("compare the shards one by one: ", call("diff", "A/SHARD.safetensors", "B/SHARD.safetensors"))


def diff(a: str | Path, b: str | Path, *, embed: str | None = None, head: str | None = None) -> Comparison:
    """Compare two models by what they compute, whatever their ties, names and layout are.

    ``same_function`` is proved over all bytes. Raises `UnreadableError` if a model cannot be read, and `RefusedError`
    if a model has more than 250,000 tensors.
    """
    from tieconv.comparison import compare

    refuse_graphs(a, b)
    with opened(os.fspath(a)) as model_a, opened(os.fspath(b)) as model_b:
        evidence_a = _comparable(inspected(model_a, Depth.CANDIDATES, embed, head, bare=True))
        evidence_b = _comparable(inspected(model_b, Depth.CANDIDATES, embed, head, bare=True))
        readers = tensor_reader(evidence_a.checkpoint, model_a[1]), tensor_reader(evidence_b.checkpoint, model_b[1])
        return compare(evidence_a, evidence_b, *readers)


def _comparable(evidence: Inspection) -> Inspection:
    """Return the evidence, or raise if `diff` cannot read the tensors or keep them in memory."""
    checkpoint = evidence.checkpoint
    refuse_far_graphs(checkpoint)
    if checkpoint.headers_only:
        problem = f"{checkpoint.source}: tieconv does not read the tensor bytes of this format"
        hint = "convert it to safetensors first"
        raise UnreadableError(f"{problem}, so it cannot compare them", hint, "diff.headers-only")
    storages = sum(len(file.storages) for file in checkpoint.files)
    if len(checkpoint.tensors) + storages > MAX_COMPARED:
        contents = count(len(checkpoint.tensors), "tensor") + (f" and {count(storages, 'storage')}" if storages else "")
        problem = f"{shown(checkpoint.source)} has {contents}, and diff compares models of at most {MAX_COMPARED:,}"
        raise RefusedError(problem, _ONE_BY_ONE, "diff.tensors")
    return evidence
