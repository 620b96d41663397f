"""Plan changes of the head bias only."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from tieconv.api.plans.planning import planned_write
from tieconv.checkpoint.inspection import Depth, Inspection
from tieconv.checkpoint.tie_group import BiasState
from tieconv.inspection.equality import bias_summary
from tieconv.opened import reading
from tieconv.plans.verbs import bias_verbs

if TYPE_CHECKING:
    from pathlib import Path

    from tieconv.checkpoint.weight_file import TensorRecord
    from tieconv.checkpoint.write_plan import Plan
    from tieconv.planned import PlannedWrite


def plan_bias(
    action: str,
    path: str | Path = ".",
    *,
    survivor: str | None = None,
    rows: int | None = None,
    embed: str | None = None,
    head: str | None = None,
    drop_other_formats: bool = False,
    fetch: bool = False,
) -> PlannedWrite:
    """Plan a change of the head bias that keeps the tie.

    ``action`` is one of four. ``zero`` adds an all-zero bias. ``strip`` removes an all-zero bias. ``unify`` makes two
    copies one; if they differ, ``survivor`` is ``bias`` or ``decoder``. ``resize`` changes the number of entries to
    ``rows``, by default to the rows of the head. Raises `RefusedError` if trained values would be lost.
    """

    def resize(evidence: Inspection) -> Plan:
        def is_zero(record: TensorRecord) -> bool:
            with reading(evidence.checkpoint) as files:
                return bias_summary(files, record)[0] is BiasState.ZERO

        return bias_verbs.plan_bias_resize(evidence, rows, is_zero)

    makers: dict[str, Callable[[Inspection], Plan]] = {
        "zero": bias_verbs.plan_bias_zero,
        "strip": bias_verbs.plan_bias_strip,
        "unify": partial(bias_verbs.plan_bias_unify, survivor=bias_verbs.BiasSurvivor(survivor) if survivor else None),
        "resize": resize,
    }
    if action not in makers:
        raise ValueError(f"{action!r} is not one of {', '.join(makers)}")
    return planned_write(makers[action], path, Depth.CANDIDATES, embed, head, drop_other_formats, fetch)
