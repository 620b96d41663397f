"""A plan with everything that its execution needs."""

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
    """Options of a write, as in `tieconv.execute.Target`. The defaults are off, and ``verify`` full."""

    in_place: bool
    overwrite: bool
    hardlink: bool
    verify: Verify


@record
class PlannedWrite(Printed):
    """A plan and everything that its execution needs. ``str()`` gives the `tieconv.plan/1` JSON.

    For a model on the Hub, ``fetch`` downloads it into the local cache and plans again there. ``fetched`` is the size
    of the download so far.
    """

    plan: Plan
    reinspect: Callable[[Path], Inspection]
    fetch: Callable[[], PlannedWrite] | None = None
    fetched: Fetched | None = None

    def outcome(self) -> Outcome:
        """Return the outcome of a plan that is not executed."""
        return Outcome(self.plan, executed=False, verified=False, output=None)

    def check(self, out: str | Path | None = None, **options: Unpack[WriteOptions]) -> None:
        """Raise every error of `execute` that needs no writing."""
        target = self._target(out, options)
        (check_target if self.fetch is None else check_far_target)(self.plan, target)

    def clear(self, out: str | Path | None = None, *, in_place: bool = False) -> None:
        """Remove the leftovers of a killed run next to ``out``, so that `check` does not report them."""
        sweep(destination(self.plan, self._target(out, {"in_place": in_place})))

    def replaces_directory(self, out: str | Path | None = None, *, in_place: bool = False) -> bool:
        """Return whether writing replaces a whole directory: a shell in that directory must enter it again."""
        return replaces_directory(self.plan, self._target(out, {"in_place": in_place, "overwrite": not in_place}))

    def execute(
        self, out: str | Path | None = None, *, progress: Progress | None = None, **options: Unpack[WriteOptions]
    ) -> Outcome:
        """Write the model to ``out``, or over its source with ``in_place``; verify it, then rename it into place.

        If a step fails, raises a `TieconvError`. The source is then unchanged, and ``out`` is absent or the old one.
        """
        if self.fetch is not None:
            self.check(out, **options)
            return self._fetched_plan().execute(out, progress=progress, **options)
        target = self._target(out, options)
        notes = execute(self.plan, target, reinspect=self.reinspect, progress=progress)
        plan = replace(self.plan, notes=(*self.plan.notes, *notes))
        return Outcome(plan, executed=True, verified=True, output=str(target.path))

    def _fetched_plan(self) -> PlannedWrite:
        """Return the same plan for the downloaded model. Raises `StalePlanError` if the branch has a new commit."""
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
        """Return the document of schema `tieconv.plan/1`."""
        return self.outcome().to_dict()

    def _facts(self) -> tuple[str, ...]:
        return self.plan._facts()

    def _rows(self) -> tuple[tuple[str, ...], ...]:
        return self.plan._rows()
