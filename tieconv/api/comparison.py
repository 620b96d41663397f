"""What differs between two models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tieconv.api.graphs import refuse_graphs
from tieconv.checkpoint.inspection import Depth
from tieconv.errors import RefusedError, UnreadableError
from tieconv.opened import inspected, opened, refuse_far_graphs
from tieconv.text import count, shown

if TYPE_CHECKING:
    from pathlib import Path

    from tieconv.checkpoint.inspection import Inspection
    from tieconv.checkpoint.results.comparison import Comparison

MAX_COMPARED = 250_000
"""Tensors, and storages of a torch file, of one model: two such models and what differs take 300 MiB."""
_ONE_BY_ONE = "compare the shards one by one: tieconv diff A/SHARD.safetensors B/SHARD.safetensors"


def diff(a: str | Path, b: str | Path, *, embed: str | None = None, head: str | None = None) -> Comparison:
    """What differs between two models, ties, names and layout seen through.

    ``same_function`` is proved over all bytes. Raises `UnreadableError` where one of them cannot be read, and
    `RefusedError` where one has more than `MAX_COMPARED` tensors.
    """
    from tieconv.comparison import compare

    refuse_graphs(a, b)
    with opened(str(a)) as model_a, opened(str(b)) as model_b:
        evidence_a = _comparable(inspected(model_a, Depth.CANDIDATES, embed, head))
        evidence_b = _comparable(inspected(model_b, Depth.CANDIDATES, embed, head))
        return compare(evidence_a, evidence_b, model_a[1], model_b[1])


def _comparable(evidence: Inspection) -> Inspection:
    """Return the evidence about a model whose tensors `diff` can read and hold."""
    checkpoint = evidence.checkpoint
    refuse_far_graphs(checkpoint)
    if checkpoint.headers_only:
        raise UnreadableError(
            f"{checkpoint.source}: tensor bytes of this format are not read, so nothing can be compared",
            "convert it to safetensors first",
            "diff.headers-only",
        )
    storages = sum(len(file.storages) for file in checkpoint.files)
    if len(checkpoint.tensors) + storages > MAX_COMPARED:
        contents = count(len(checkpoint.tensors), "tensor") + (f" and {count(storages, 'storage')}" if storages else "")
        raise RefusedError(
            f"{shown(checkpoint.source)} holds {contents}, and diff compares models of at most {MAX_COMPARED:,}",
            _ONE_BY_ONE,
            "diff.tensors",
        )
    return evidence
