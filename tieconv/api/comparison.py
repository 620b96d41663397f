"""Compare two models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tieconv.api.graphs import refuse_graphs
from tieconv.checkpoint.inspection import Depth
from tieconv.errors import RefusedError, UnreadableError
from tieconv.opened import inspected, opened, refuse_far_graphs, tensor_reader
from tieconv.text import count, shown

if TYPE_CHECKING:
    from pathlib import Path

    from tieconv.checkpoint.inspection import Inspection
    from tieconv.checkpoint.results.comparison import Comparison

MAX_COMPARED = 250_000
"""Most tensors and torch storages of one model. Two such models and their differences take 300 MiB."""
_ONE_BY_ONE = "compare the shards one by one: tieconv diff A/SHARD.safetensors B/SHARD.safetensors"


def diff(a: str | Path, b: str | Path, *, embed: str | None = None, head: str | None = None) -> Comparison:
    """Compare two models by what they compute, whatever their ties, names and layout are.

    ``same_function`` is proved over all bytes. Raises `UnreadableError` if a model cannot be read, and `RefusedError`
    if a model has more than `MAX_COMPARED` tensors.
    """
    from tieconv.comparison import compare

    refuse_graphs(a, b)
    with opened(str(a)) as model_a, opened(str(b)) as model_b:
        evidence_a = _comparable(inspected(model_a, Depth.CANDIDATES, embed, head, bare=True))
        evidence_b = _comparable(inspected(model_b, Depth.CANDIDATES, embed, head, bare=True))
        readers = tensor_reader(evidence_a.checkpoint, model_a[1]), tensor_reader(evidence_b.checkpoint, model_b[1])
        return compare(evidence_a, evidence_b, *readers)


def _comparable(evidence: Inspection) -> Inspection:
    """Return the evidence, or raise if `diff` cannot read the tensors or keep them in memory."""
    checkpoint = evidence.checkpoint
    refuse_far_graphs(checkpoint)
    if checkpoint.headers_only:
        raise UnreadableError(
            f"{checkpoint.source}: tieconv does not read the tensor bytes of this format, so it cannot compare them",
            "convert it to safetensors first",
            "diff.headers-only",
        )
    storages = sum(len(file.storages) for file in checkpoint.files)
    if len(checkpoint.tensors) + storages > MAX_COMPARED:
        contents = count(len(checkpoint.tensors), "tensor") + (f" and {count(storages, 'storage')}" if storages else "")
        raise RefusedError(
            f"{shown(checkpoint.source)} has {contents}, and diff compares models of at most {MAX_COMPARED:,}",
            _ONE_BY_ONE,
            "diff.tensors",
        )
    return evidence
