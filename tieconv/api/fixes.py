"""Plan the commands that findings recommend, and show or apply the safe ones."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from tieconv.api import plans
from tieconv.api.check import inspecting
from tieconv.api.evidence import is_graph
from tieconv.errors import RefusedError
from tieconv.gate.examine import examine, outputs
from tieconv.gate.fixes import Fixer, preview
from tieconv.text import shown

if TYPE_CHECKING:
    from tieconv.checkpoint.finding import Action
    from tieconv.checkpoint.graph_plan import GraphOutcome
    from tieconv.checkpoint.results.checked import CheckedModel, CheckReport
    from tieconv.checkpoint.write_plan import Outcome
    from tieconv.gate.policy import Policy
    from tieconv.onnx.write.plan import PlannedGraphs
    from tieconv.planned import PlannedWrite


_PLANNERS: dict[str, Callable[..., PlannedWrite]] = {
    "bias": plans.plan_bias,
    "convert": plans.plan_convert,
    "dedup": plans.plan_dedup,
    "reindex": plans.plan_reindex,
    "resize": plans.plan_resize,
    "retie": plans.plan_retie,
    "set-tie": plans.plan_set_tie,
    "untie": plans.plan_untie,
}


def plan_action(action: Action) -> PlannedWrite | PlannedGraphs:
    """Plan the command of a finding. Raises the `RefusedError` of that command."""
    if action.verb == "dedup" and is_graph(action.source):
        from tieconv.api.graphs import plan_graph_dedup

        planned = plan_graph_dedup(action.source)
        if not any(matrix.done for matrix in planned.matrices):
            left = next((matrix.left for matrix in planned.matrices if matrix.left), "nothing can be stored once")
            raise RefusedError(f"dedup does not change the graph: {shown(left)}")
        return planned
    verb, *words = action.verb.split()
    if verb not in _PLANNERS:
        raise ValueError(f"{action.verb!r} is not a command with a plan")
    return _PLANNERS[verb](*words, path=action.source, **dict(action.options))


def preview_fixes(report: CheckReport) -> tuple[CheckReport, tuple[Outcome | GraphOutcome, ...]]:
    """Plan the safe fixes of the findings that count, and write nothing."""
    previews = [preview(model, report.counts, plan_action) for model in report.models]
    outcomes = tuple(outcome for _, outcomes in previews for outcome in outcomes)
    return replace(report, models=tuple(model for model, _ in previews)), outcomes


def fix(
    policy: Policy,
    report: CheckReport,
    models: dict[str, CheckedModel],
    out: str | None,
    *,
    embed: str | None = None,
    head: str | None = None,
) -> CheckReport:
    """Apply the safe fixes of the findings that count: to ``out`` (OUT/NAME for several models), or in place.

    Returns the report of the fixed models. A write that fails becomes the failure of its model.
    """
    places = {location: model.source for location, model in models.items()}
    outs = dict(zip(places, outputs(places, out), strict=True)) if out is not None else {}
    if len(outs) > 1:
        os.makedirs(out or "", exist_ok=True)
    look = partial(examine, inspecting(policy, embed, head))

    def judged(path: str, location: str) -> CheckedModel:
        return policy.judge(look(path), location)

    fixers = {
        location: Fixer(partial(judged, location=location), report.counts, plan_action, outs.get(location))
        for location in models
    }
    fixed = tuple(fixers[location].run(model) for location, model in models.items())
    notes = tuple(note for fixer in fixers.values() for note in fixer.notes)
    return replace(report, models=fixed, notes=(*report.notes, *notes))
