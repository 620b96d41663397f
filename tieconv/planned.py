"""A plan that can be carried out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal, TypedDict, Unpack

from tieconv.checkpoint.inspection import Fetched, Inspection
from tieconv.checkpoint.json_values import Printed
from tieconv.checkpoint.value_type import record
from tieconv.checkpoint.write_plan.plan import Outcome, Plan
from tieconv.execute import Target, check_far_target, check_target, execute, replaces_directory, stale
from tieconv.execute.staging import sweep
from tieconv.execute.target import destination

Progress = Callable[[int, int], None]
Verify = Literal["full", "structure"]


class WriteOptions(TypedDict, total=False):
    """How to write; each as in `tieconv.execute.Target`, and off or full where it is left out."""

    in_place: bool
    overwrite: bool
    hardlink: bool
    verify: Verify


@record
class PlannedWrite(Printed):
    """A plan and what it needs to be carried out. ``str()`` gives the `tieconv.plan/1` JSON.

    Of a model on the Hub ``fetch`` brings it into the local cache and plans anew there; ``fetched`` is what was read of
    it so far.
    """

    plan: Plan
    reinspect: Callable[[Path], Inspection]
    fetch: Callable[[], PlannedWrite] | None = None
    fetched: Fetched | None = None

    def outcome(self) -> Outcome:
        """The plan as it stands, not executed."""
        return Outcome(self.plan, executed=False, verified=False, output=None)

    def check(self, out: str | Path | None = None, **options: Unpack[WriteOptions]) -> None:
        """Every refusal that needs no writing, as `execute` would make it."""
        target = self._target(out, options)
        (check_target if self.fetch is None else check_far_target)(self.plan, target)

    def clear(self, out: str | Path | None = None, *, in_place: bool = False) -> None:
        """Remove what a killed run left beside ``out``, so that `check` does not meet it."""
        sweep(destination(self.plan, self._target(out, {"in_place": in_place})))

    def replaces_directory(self, out: str | Path | None = None, *, in_place: bool = False) -> bool:
        """Whether writing exchanges a whole directory: a shell that stands in it must enter it again."""
        return replaces_directory(self.plan, self._target(out, {"in_place": in_place, "overwrite": not in_place}))

    def execute(
        self, out: str | Path | None = None, *, progress: Progress | None = None, **options: Unpack[WriteOptions]
    ) -> Outcome:
        """Write the model to ``out``, or over its source with ``in_place``, prove it, then rename it into place.

        Raises a `TieconvError` and leaves the source as it was and ``out`` absent (or old) where anything fails.
        """
        if self.fetch is not None:
            self.check(out, **options)
            return self._fetched_plan().execute(out, progress=progress, **options)
        target = self._target(out, options)
        notes = execute(self.plan, target, reinspect=self.reinspect, progress=progress)
        plan = replace(self.plan, notes=(*self.plan.notes, *notes))
        return Outcome(plan, executed=True, verified=True, output=str(target.path))

    def _fetched_plan(self) -> PlannedWrite:
        """The same plan for what was fetched. Raises `StalePlanError` where the branch moved on meanwhile."""
        assert self.fetch is not None
        local_plan = self.fetch()
        commit = self.plan.checkpoint.revision
        if commit and commit not in Path(local_plan.plan.checkpoint.root).parts:
            raise stale(self.plan.checkpoint.source)
        return local_plan

    def _target(self, out: str | Path | None, options: WriteOptions) -> Target:
        in_place = options.get("in_place", False)
        return Target(Path(self.plan.checkpoint.source if in_place or out is None else out), **options)

    def to_dict(self) -> dict[str, object]:
        """The document of schema `tieconv.plan/1`."""
        return self.outcome().to_dict()

    def _facts(self) -> tuple[str, ...]:
        return self.plan._facts()

    def _rows(self) -> tuple[tuple[str, ...], ...]:
        return self.plan._rows()
