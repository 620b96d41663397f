"""Show or apply the safe fixes of findings."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from tieconv.api.findings.gate import inspecting
from tieconv.api.findings.remedies import plan_action
from tieconv.gate.examine import examine, outputs
from tieconv.gate.fixes import Fixer, preview

if TYPE_CHECKING:
    from tieconv.checkpoint.graph_plan import GraphOutcome
    from tieconv.checkpoint.results.checked import CheckedModel, CheckReport
    from tieconv.checkpoint.write_plan import Outcome
    from tieconv.gate.policy import Policy


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
    fixers = {
        location: Fixer(
            lambda path, location=location: policy.judge(look(path), location),  # type: ignore[misc]
            report.counts,
            plan_action,
            outs.get(location),
        )
        for location in models
    }
    fixed = tuple(fixers[location].run(model) for location, model in models.items())
    notes = tuple(note for fixer in fixers.values() for note in fixer.notes)
    return replace(report, models=fixed, notes=(*report.notes, *notes))
