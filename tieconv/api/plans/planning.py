"""Make an executable plan from MODEL."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from tieconv.api.evidence import inspect
from tieconv.api.graphs import refuse_graphs
from tieconv.checkpoint.inspection import Depth, Inspection
from tieconv.opened import on_disk, proved
from tieconv.plans.build import alone, dropping
from tieconv.plans.guards import guard_many
from tieconv.sources import is_remote

if TYPE_CHECKING:
    from pathlib import Path

    from tieconv.checkpoint.write_plan import Plan
    from tieconv.planned import PlannedWrite


def planned_write(
    make: Callable[[Inspection], Plan],
    path: str | Path,
    depth: Depth,
    embed: str | None,
    head: str | None,
    drop_other_formats: bool,
    fetch: bool,
    *,
    bare: bool = False,
) -> PlannedWrite:
    """Make a plan from the evidence with ``make``, and return it with everything that `execute` needs.

    For a remote model, it reads headers and the bytes that a proof needs. The download happens at once with
    ``fetch``, else in `execute`. With ``bare`` the tensors of a training checkpoint have the names of the model.
    """
    from tieconv.planned import PlannedWrite

    def local_write() -> PlannedWrite:
        return planned_write(make, on_disk(path, drop_other_formats), depth, embed, head, drop_other_formats, False)

    refuse_graphs(path)
    far = is_remote(str(path))
    if far and fetch:
        return local_write()
    evidence = (
        proved(str(path), depth, embed, head)
        if far
        else inspect(path, depth=depth, embed=embed, head=head, bare=bare, accept=guard_many)
    )
    if drop_other_formats:
        plan = dropping(make(replace(evidence, checkpoint=alone(evidence.checkpoint))))
    else:
        plan = make(evidence)
    written = (None, None) if evidence.checkpoint.table else (embed, head)
    reinspect = partial(inspect, embed=written[0], head=written[1])
    return PlannedWrite(plan, reinspect, local_write if far else None, evidence.fetched)
