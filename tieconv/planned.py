"""A plan with everything that its execution needs, and the places where it can be written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypedDict, Unpack

from tieconv.checkpoint.inspection import Depth, Fetched, Inspection
from tieconv.checkpoint.value_type import Printed, record
from tieconv.checkpoint.write_plan import Outcome, Plan, RemoteTransfer
from tieconv.sources import is_object

# A plan that is only printed imports nothing of `tieconv.execute`.
if TYPE_CHECKING:
    from tieconv.execute.target import Target
    from tieconv.sources.objects.writer import ObjectWriter

Progress = Callable[[int, int], None]
Verify = Literal["full", "structure"]


class WriteOptions(TypedDict, total=False):
    """Options of a write, as in `tieconv.execute.Target`. The defaults are off, and ``verify`` full.

    In an object store tieconv reads back what it uploaded, and with ``verify`` full also what the server copied. There
    it refuses ``resume``.
    """

    in_place: bool
    overwrite: bool
    hardlink: bool
    verify: Verify
    resume: bool


@record
class PlannedWrite(Printed):
    """A plan and everything that its execution needs. ``print`` shows it as the command does.

    For a model on the Hub, ``fetch`` downloads it into the local cache and plans again there. ``fetched`` is the size
    of the download so far.
    """

    plan: Plan
    reinspect: Callable[..., Inspection]
    fetch: Callable[[], PlannedWrite] | None = None
    fetched: Fetched | None = None

    def outcome(self, out: str | Path | None = None, *, overwrite: bool = False) -> Outcome:
        """Return the outcome of a plan that is not executed. For an object store it has the bytes to move.

        With ``overwrite`` its notes have the files that ``out`` loses.
        """
        target = self._to(out, overwrite=overwrite)
        plan = replace(self.plan, notes=(*self.plan.notes, *target.removal_notes()))
        return Outcome(plan, executed=False, verified=False, output=None, remote=target.forecast())

    def check(self, out: str | Path | None = None, **options: Unpack[WriteOptions]) -> None:
        """Raise every error of `execute` that needs no writing."""
        self._to(out, **options).check()

    def clear(self, out: str | Path | None = None, *, in_place: bool = False, resume: bool = False) -> None:
        """Remove the leftovers of a killed run next to ``out``, so that `check` does not report them.

        With ``resume``, what `execute` can take over stays.
        """
        self._to(out, in_place=in_place, resume=resume).clear()

    def replaces_directory(self, out: str | Path | None = None, *, in_place: bool = False) -> bool:
        """Return whether writing replaces a whole directory: a shell in that directory must enter it again."""
        return self._to(out, in_place=in_place, overwrite=not in_place).replaces_directory()

    def execute(
        self, out: str | Path | None = None, *, progress: Progress | None = None, **options: Unpack[WriteOptions]
    ) -> Outcome:
        """Write the model to ``out``, or over its source with ``in_place``; verify it, then rename it into place.

        If a step fails, raises a `TieconvError`. The source is then unchanged, and ``out`` is absent or the old one.
        Raises `ValueError` with both ``out`` and ``in_place``, and with neither.
        """
        if out is None and not options.get("in_place"):
            raise ValueError("execute: give out, a new path, or in_place=True")
        return self._to(out, **options).write(progress)

    def _to(self, out: str | Path | None, **options: Unpack[WriteOptions]) -> LocalPath | ObjectPrefix:
        if out is not None and is_object(str(out)):
            return ObjectPrefix(self, str(out), options)
        in_place = options.get("in_place", False)
        if in_place and out is not None:
            raise ValueError("out and in_place=True cannot be used together")
        path = Path(self.plan.checkpoint.source if in_place or out is None else out)
        return LocalPath(self, path, options)

    def to_dict(self) -> dict[str, object]:
        """Return the document of schema `tieconv.plan/1`."""
        return self.outcome().to_dict()

    def __str__(self) -> str:
        from tieconv.reporters.text.plan_text import render

        return render(self.outcome())

    def _facts(self) -> tuple[str, ...]:
        return self.plan._facts()

    def _rows(self) -> Iterator[tuple[str, ...]]:
        for line in str(self).splitlines()[1:]:
            yield tuple(cell.strip() for cell in line.split("  ") if cell)


def _on_disk(planned: PlannedWrite) -> PlannedWrite:
    """Return the same plan for the downloaded model. Raises `StalePlanError` if the branch has a new commit."""
    if planned.fetch is None:
        return planned
    local_plan = planned.fetch()
    commit = planned.plan.checkpoint.revision
    if commit and commit not in Path(local_plan.plan.checkpoint.root).parts:
        from tieconv.execute.target import stale

        raise stale(planned.plan.checkpoint.source)
    return local_plan


@record
class LocalPath:
    """A new path on this machine, or with ``in_place`` the model itself."""

    planned: PlannedWrite
    path: Path
    options: WriteOptions

    @property
    def _target(self) -> Target:
        from tieconv.execute.target import Target

        return Target(self.path, **self.options)

    def forecast(self) -> None:
        return None

    def check(self) -> None:
        from tieconv.execute.target import check_far_target, check_target

        (check_target if self.planned.fetch is None else check_far_target)(self.planned.plan, self._target)

    def clear(self) -> None:
        from tieconv.execute.carry_out import clear

        clear(self.planned.plan, self._target)

    def replaces_directory(self) -> bool:
        from tieconv.execute.target import replaces_directory

        return replaces_directory(self.planned.plan, self._target)

    def removal_notes(self) -> tuple[str, ...]:
        if not self.options.get("overwrite"):
            return ()
        from tieconv.execute.target import removal_notes

        return removal_notes(self.planned.plan, self._target)

    def write(self, progress: Progress | None) -> Outcome:
        from tieconv.execute.carry_out import execute

        if self.planned.fetch is not None:
            self.check()
        planned = _on_disk(self.planned)
        notes = execute(planned.plan, self._target, reinspect=planned.reinspect, progress=progress)
        plan = replace(planned.plan, notes=(*planned.plan.notes, *notes))
        return Outcome(plan, executed=True, verified=True, output=str(self.path))


@record
class ObjectPrefix:
    """A new prefix of an object store. Only `execute.new_prefix` knows how it is written."""

    planned: PlannedWrite
    out: str
    options: WriteOptions

    def forecast(self) -> RemoteTransfer:
        from tieconv.execute.remote_files import forecast
        from tieconv.sources.objects import parse

        return forecast(self.planned.plan, parse(self.out), self._read)

    @property
    def _read(self) -> int:
        """Bytes that the proofs of the plan have fetched."""
        return 0 if self.planned.fetched is None else self.planned.fetched.bytes

    def check(self) -> None:
        from tieconv.execute.new_prefix import check_free

        check_free(self._writer())

    def _writer(self) -> ObjectWriter:
        from tieconv.execute.new_prefix import check_remote_target
        from tieconv.sources.objects import parse
        from tieconv.sources.objects.source import require

        check_remote_target(self.planned.plan, self.out, self.options)
        path = parse(self.out)
        require()
        from tieconv.sources.objects.writer import ObjectWriter

        return ObjectWriter(path)

    def clear(self) -> None:
        return None

    def replaces_directory(self) -> bool:
        return False

    def removal_notes(self) -> tuple[str, ...]:
        return ()

    def write(self, progress: Progress | None) -> Outcome:
        """Write by copies of the server where it can, else from a temporary directory."""
        from tieconv.execute.new_prefix import check_free, server_copy, upload
        from tieconv.execute.remote_files import why_upload
        from tieconv.sources.objects.source import CopyUnsupportedError
        from tieconv.sources.temporary import temporary_directory

        writer, plan = self._writer(), self.planned.plan
        headers = partial(self.planned.reinspect, depth=Depth.HEADER)
        why = why_upload(plan, writer.path)
        if not why:
            full = self.options.get("verify") == "full"
            try:
                transfer, notes = server_copy(plan, writer, headers, full=full, read=self._read, progress=progress)
            except CopyUnsupportedError:
                why = "the server cannot copy ranges"
            else:
                return self._outcome(plan, notes, transfer)
        check_free(writer)
        verify: Verify = self.options.get("verify", "full")
        with temporary_directory() as directory:
            planned = _on_disk(self.planned)
            copied = sum(file.size for file in planned.plan.fingerprint.values()) if self.planned.fetch else 0
            local = Path(directory, "model")
            plan = planned.execute(local, verify=verify).plan
            full, read = verify == "full", self._read + copied
            transfer = upload(plan, writer, local, headers, full=full, why=why, read=read, progress=progress)
        note = f"tieconv wrote the model to a temporary directory and uploaded it, because {why}"
        return self._outcome(plan, (note,), transfer)

    def _outcome(self, plan: Plan, notes: tuple[str, ...], transfer: RemoteTransfer) -> Outcome:
        plan = replace(plan, notes=(*plan.notes, *notes))
        return Outcome(plan, executed=True, verified=True, output=self.out, remote=transfer)
