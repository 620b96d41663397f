"""The plan that rebuilds a shard index, for models whose index cannot be read as it is."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tieconv.api.evidence import inspect
from tieconv.api.graphs import refuse_graphs
from tieconv.checkpoint.inspection import Depth, Inspection
from tieconv.errors import UnreadableError
from tieconv.formats.shards import read_shards
from tieconv.inspection.equality import equal
from tieconv.inspection.views import readable
from tieconv.opened import fetched_so_far, on_disk, opened
from tieconv.plans import reindex
from tieconv.plans.other_formats import alone, dropping
from tieconv.sources import is_hub

if TYPE_CHECKING:
    from pathlib import Path

    from tieconv.checkpoint.records import TensorRecord
    from tieconv.planned import PlannedWrite


def plan_reindex(
    path: str | Path = ".", *, prune: bool = False, drop_other_formats: bool = False, fetch: bool = False
) -> PlannedWrite:
    """The plan that rebuilds the shard index, of safetensors or torch files, from the headers of the shards.

    ``prune`` leaves the weight files outside the index out.

    Raises `RefusedError` for a model of one file and where one tensor stands in two shards with different bytes,
    `UnreadableError` where a shard is missing.
    """
    from tieconv.planned import PlannedWrite

    def near() -> PlannedWrite:
        there = on_disk(path, drop_other_formats, refuses=False)
        return plan_reindex(there, prune=prune, drop_other_formats=drop_other_formats)

    refuse_graphs(path)
    far = is_hub(str(path))
    if far and fetch:
        return near()
    with opened(str(path)) as (listing, files, commit):

        def same(a: TensorRecord, b: TensorRecord) -> bool:
            reader, (one, two) = readable(files, (a, b))
            return equal(reader, one.range, two.range)

        checkpoint = replace(read_shards(listing, files), revision=commit)
        plan = reindex.plan_reindex(alone(checkpoint) if drop_other_formats else checkpoint, same, prune=prune)
        fetched = fetched_so_far(files)
    return PlannedWrite(dropping(plan) if drop_other_formats else plan, _indexed, near if far else None, fetched)


def _indexed(out: Path) -> Inspection:
    """The evidence about a model whose index was written; `UnreadableError` where it still is not right."""
    evidence = inspect(out, depth=Depth.HEADER)
    faults = ("index.absent", "index.absent-tensor", "index.extra-tensor")
    fault = next((caution for caution in evidence.checkpoint.cautions if caution.code in faults), None)
    if fault is not None:
        raise UnreadableError(fault.message, "", fault.code)
    return evidence
