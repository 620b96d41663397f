"""Apply safe remedies one at a time, each to the result of the one before it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from tieconv.checkpoint.finding import REVIEW_FIRST, Action, Remedy
from tieconv.checkpoint.graph_plan import GraphOutcome
from tieconv.checkpoint.results.checked import CheckedFinding, CheckedModel, Failure, Fix
from tieconv.checkpoint.write_plan import Outcome
from tieconv.errors import RefusedError, TieconvError
from tieconv.execute.publish import Interrupts, interrupts, owning, publish_new
from tieconv.execute.staging import Staging, sweep
from tieconv.execute.target import Target, destination
from tieconv.execute.tree import remove
from tieconv.planned import PlannedWrite

MOST = 8
"""Remedies that are applied to one model at most, so that a loop ends."""

_SIDES = {"retie": "tied", "set-tie true": "tied", "untie": "untied", "set-tie false": "untied"}

Look = Callable[[str], CheckedModel]
"""Inspects the model at a path and judges its findings."""
Counts = Callable[[CheckedFinding], bool]


class Planned(Protocol):
    """A plan of a checkpoint or of graphs. The plan of graphs is written in a separate step."""

    def outcome(self) -> Outcome | GraphOutcome:
        """Return the plan without executing it."""
        ...

    def clear(self, out: str | Path | None = None) -> None:
        """Remove what a killed run left beside ``out``."""
        ...

    def check(self, out: str | Path | None = None) -> None:
        """Raise every refusal that is known before writing."""
        ...

    def execute(self, out: str | Path | None = None, *, in_place: bool = False) -> Outcome | GraphOutcome:
        """Write the result and verify it, all or nothing."""
        ...


Plan = Callable[[Action], Planned]


@dataclass
class Fixer:
    """Applies the safe remedies of the findings that count.

    ``out`` is the path of the new model, or ``None`` to replace the model itself. ``source`` is the model as the user
    wrote it. ``notes`` list what could not be kept of replaced files.
    """

    look: Look
    counts: Counts
    plan: Plan
    out: str | None
    source: str = ""
    done: list[Fix] = field(default_factory=list)
    now: Fix | None = None
    applied: list[Action] = field(default_factory=list)
    refused: dict[tuple[str, tuple[tuple[str, object], ...]], str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def run(self, model: CheckedModel) -> CheckedModel:
        """Return the model after its remedies, with a `Failure` if one could not be written."""
        if model.failure is not None:
            return model
        self.source = model.source
        try:
            after, output = self._in_place(model) if self.out is None else self._beside(model, self.out)
        except TieconvError as error:
            written = tuple(self.done) if self.out is None else ()  # with -o the write is all or nothing
            return replace(model, failure=Failure(error.message, error.command_hint), fixes=written)
        return replace(after, fixes=(*self.done, *self._left(after)), output=output)

    def _in_place(self, model: CheckedModel) -> tuple[CheckedModel, str | None]:
        if os.path.lexists(model.source):
            sweep(Path(os.path.realpath(model.source)))  # a killed run may have left nothing more to fix
        now = model
        while (planned := self._next(now)) is not None:
            known = planned.outcome().plan.notes
            written = planned.execute(in_place=True).plan.notes
            self.notes += [f"{self.source}: {note}" for note in written if note not in known]
            self._finished()
            now = self.look(model.source)
        return now, model.source if self.applied else None

    def _beside(self, model: CheckedModel, out: str) -> tuple[CheckedModel, str | None]:
        """Write OUT in steps in one hidden directory beside OUT. Each step reads the result of the last one."""
        planned = self._next(model)
        if planned is None:
            return model, None
        planned.clear(out)
        planned.check(out)
        if not isinstance(planned, PlannedWrite):
            planned.execute(out)
            self._finished()
            return self.look(out), out
        final = destination(planned.plan, Target(Path(out)))
        with interrupts() as signals:
            owning(final, signals, lambda staging: self._publish(planned, staging, signals))
        return self.look(out), out

    def _publish(self, first: PlannedWrite, staging: Staging, signals: Interrupts) -> None:
        planned: Planned | None = first
        number, at = 0, staging.held
        while planned is not None:
            number += 1
            before, at = at, staging.held / f"step-{number}" / staging.final.name
            os.mkdir(at.parent)
            planned.execute(at)
            self._finished()
            if number > 1:
                remove(before.parent)
            planned = self._next(self.look(str(at)))
        with signals.shielded():
            staging.check()
            publish_new(at, staging.final)

    def _next(self, model: CheckedModel) -> Planned | None:
        for action, rules in actions(model, self.counts):
            key = (action.verb, action.options)
            reason = self._reason_against(action, model)
            try:
                planned = self.plan(action) if not reason and key not in self.refused else None
            except RefusedError as error:
                planned, reason = None, error.message
            if planned is not None:
                self.applied.append(action)
                self.now = Fix(self._on_named_model(action, model).command, rules)
                return planned
            self.refused.setdefault(key, reason)
        return None

    def _on_named_model(self, action: Action, model: CheckedModel) -> Action:
        """Return the action on the model that the user named. A later step reads an intermediate result."""
        if os.path.normpath(model.source) == os.path.normpath(self.source):
            return action
        return replace(action, source=self.source)

    def _finished(self) -> None:
        if self.now is not None:
            self.done.append(self.now)

    def _reason_against(self, action: Action, model: CheckedModel) -> str:
        if len(self.applied) >= MOST:
            return f"{MOST} remedies are already applied"
        if not model.is_target(action):
            return "the remedy is about another model"
        for earlier in self.applied:
            if (earlier.verb, earlier.options) == (action.verb, action.options):
                return "the remedy was applied, but the finding remains"
            sides = {_SIDES.get(earlier.verb, ""), _SIDES.get(action.verb, "")} - {""}
            if len(sides) > 1:
                return f"the remedy would undo {earlier.verb}, which is already applied"
        return ""

    def _left(self, model: CheckedModel) -> Iterator[Fix]:
        """Yield the remedies of findings that still count, and why they were not applied."""
        for entry in filter(self.counts, model.findings):
            remedy = entry.finding.remedy
            if remedy is None:
                continue
            if not remedy.safe:
                yield _unsafe(remedy, entry.finding.rule)
            elif remedy.action is not None:
                key = (remedy.action.verb, remedy.action.options)
                yield Fix(remedy.command, (entry.finding.rule,), self.refused.get(key, "the remedy was not applied"))


def _unsafe(remedy: Remedy, rule: str) -> Fix:
    return Fix(remedy.command, (rule,), REVIEW_FIRST.strip("()"))


def actions(model: CheckedModel, counts: Counts) -> Iterator[tuple[Action, tuple[str, ...]]]:
    """Yield the safe remedies of the findings that count, each once, with the rules that ask for it."""
    rules_of: dict[Action, list[str]] = {}
    for entry in filter(counts, model.findings):
        remedy = entry.finding.remedy
        if remedy is not None and remedy.safe and remedy.action is not None:
            rules_of.setdefault(remedy.action, []).append(entry.finding.rule)
    for action, rules in rules_of.items():
        yield action, tuple(dict.fromkeys(rules))


def preview(model: CheckedModel, counts: Counts, plan: Plan) -> tuple[CheckedModel, tuple[Outcome | GraphOutcome, ...]]:
    """Return the model with its refused remedies, and the plans of those that would be tried first."""
    outcomes: list[Outcome | GraphOutcome] = []
    remedies = [(entry.finding.rule, entry.finding.remedy) for entry in filter(counts, model.findings)]
    refused = [_unsafe(remedy, rule) for rule, remedy in remedies if remedy is not None and not remedy.safe]
    for action, rules in actions(model, counts):
        try:
            if not model.is_target(action):
                raise RefusedError("the remedy is about another model")
            outcomes.append(plan(action).outcome())
        except RefusedError as error:
            refused.append(Fix(action.command, rules, error.message))
    return replace(model, fixes=tuple(refused)), tuple(outcomes)
