"""Plan a new shard index, also for a model whose index cannot be read."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tieconv.api.evidence import inspect
from tieconv.api.graphs import refuse_graphs
from tieconv.api.plans.planning import planned_write
from tieconv.checkpoint.inspection import Depth, Inspection
from tieconv.errors import UnreadableError
from tieconv.formats.directory import CONFIG, read_config
from tieconv.formats.shards import is_one_file, read_shards
from tieconv.inspection import inspect_checkpoint
from tieconv.inspection.equality import equal
from tieconv.inspection.view_reader import readable
from tieconv.opened import fetched_so_far, on_disk, opened
from tieconv.plans.build import alone, dropping, plan_add_format
from tieconv.plans.verbs import reindex
from tieconv.plans.verbs.reindex import plan_strip_prefix
from tieconv.sources import is_remote

if TYPE_CHECKING:
    from pathlib import Path

    from tieconv.checkpoint.model_files import Checkpoint, Listing
    from tieconv.checkpoint.weight_file import TensorRecord
    from tieconv.planned import PlannedWrite
    from tieconv.sources.local.files import FileSet
    from tieconv.sources.ranged.ranged_files import RangedFiles


def plan_reindex(
    path: str | Path = ".",
    *,
    prune: bool = False,
    add_format: bool = False,
    strip_prefix: bool = False,
    drop_other_formats: bool = False,
    fetch: bool = False,
) -> PlannedWrite:
    """Plan to rebuild the shard index of safetensors or torch files from the headers of the shards.

    ``prune`` leaves out weight files that the index does not list. ``add_format`` writes the ``format`` entry of
    safetensors metadata, if it is missing or loaders refuse it. It also works for a model of one file without an index.

    ``strip_prefix`` removes the prefix of a training wrapper (`module.`, `_orig_mod.`) from every tensor name instead.

    Raises `RefusedError` for any other model of one file, and if two shards store one tensor with different bytes.
    Raises `UnreadableError` if a shard is missing.
    """
    from tieconv.planned import PlannedWrite

    def local_write() -> PlannedWrite:
        there = on_disk(path, drop_other_formats, refuses=False)
        return plan_reindex(there, prune=prune, add_format=add_format, drop_other_formats=drop_other_formats)

    refuse_graphs(path)
    if strip_prefix:
        return planned_write(plan_strip_prefix, path, Depth.HEADER, None, None, drop_other_formats, fetch)
    if add_format and _is_one_file(path):
        return planned_write(plan_add_format, path, Depth.HEADER, None, None, drop_other_formats, fetch)
    far = is_remote(str(path))
    if far and fetch:
        return local_write()
    with opened(str(path)) as (listing, files, commit):

        def same(a: TensorRecord, b: TensorRecord) -> bool:
            reader, (left, right) = readable(files, (a, b))
            return equal(reader, left.range, right.range)

        checkpoint = replace(read_shards(listing, files), revision=commit)
        whole = alone(checkpoint) if drop_other_formats else checkpoint
        evidence = _evidence(whole, listing, files)
        plan = reindex.plan_reindex(whole, same, evidence, prune=prune, add_format=add_format)
        fetched = fetched_so_far(files)
    return PlannedWrite(dropping(plan) if drop_other_formats else plan, _indexed, local_write if far else None, fetched)


def _evidence(checkpoint: Checkpoint, listing: Listing, files: RangedFiles | FileSet) -> Inspection | None:
    """Return the evidence from the headers of the shards and the config; ``None`` without a valid config."""
    if CONFIG not in listing.top:
        return None
    try:
        config, _ = read_config(files)
    except UnreadableError:
        return None
    return inspect_checkpoint(replace(checkpoint, config=config), files, Depth.HEADER)


def _is_one_file(path: str | Path) -> bool:
    with opened(str(path)) as (listing, files, _):
        return is_one_file(listing, files)


def _indexed(out: Path, depth: Depth = Depth.HEADER) -> Inspection:
    """Return the evidence about a model with a new index. Raises `UnreadableError` if the index is wrong."""
    evidence = inspect(out, depth=depth)
    faults = ("index.absent", "index.absent-tensor", "index.extra-tensor")
    fault = next((caution for caution in evidence.checkpoint.cautions if caution.code in faults), None)
    if fault is not None:
        raise UnreadableError(fault.message, "", fault.code)
    return evidence
