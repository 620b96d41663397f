"""A plan with everything that its execution needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

from tieconv.checkpoint.inspection import Depth, Fetched, Inspection
from tieconv.checkpoint.value_type import Printed, record
from tieconv.checkpoint.write_plan import Outcome, Plan
from tieconv.execute import Target, check_far_target, check_target, execute, replaces_directory, stale
from tieconv.execute.new_prefix import check_free, check_remote_target, writer_of
from tieconv.execute.remote_files import forecast, why_upload
from tieconv.execute.staging import resumable, sweep
from tieconv.execute.target import destination
from tieconv.sources import is_object
from tieconv.sources.objects import parse

if TYPE_CHECKING:
    from tieconv.sources.objects.object_writer import ObjectWriter

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
    """A plan and everything that its execution needs. ``str()`` gives the `tieconv.plan/1` JSON.

    For a model on the Hub, ``fetch`` downloads it into the local cache and plans again there. ``fetched`` is the size
    of the download so far.
    """

    plan: Plan
    reinspect: Callable[..., Inspection]
    fetch: Callable[[], PlannedWrite] | None = None
    fetched: Fetched | None = None

    def outcome(self, out: str | Path | None = None) -> Outcome:
        """Return the outcome of a plan that is not executed. For an object store it has the bytes to move."""
        remote = None
        if out is not None and is_object(str(out)):
            remote = forecast(self.plan, parse(str(out)), self._read)
        return Outcome(self.plan, executed=False, verified=False, output=None, remote=remote)

    @property
    def _read(self) -> int:
        return 0 if self.fetched is None else self.fetched.bytes

    def check(self, out: str | Path | None = None, **options: Unpack[WriteOptions]) -> None:
        """Raise every error of `execute` that needs no writing."""
        if out is not None and is_object(str(out)):
            check_remote_target(self.plan, str(out), **_without_verify(options))
            check_free(writer_of(str(out)))
            return
        target = self._target(out, options)
        (check_target if self.fetch is None else check_far_target)(self.plan, target)

    def clear(self, out: str | Path | None = None, *, in_place: bool = False, resume: bool = False) -> None:
        """Remove the leftovers of a killed run next to ``out``, so that `check` does not report them.

        With ``resume``, what `execute` can take over stays.
        """
        if out is not None and is_object(str(out)):
            return
        final = destination(self.plan, self._target(out, {"in_place": in_place}))
        if not (resume and resumable(final)):
            sweep(final)

    def replaces_directory(self, out: str | Path | None = None, *, in_place: bool = False) -> bool:
        """Return whether writing replaces a whole directory: a shell in that directory must enter it again."""
        if out is not None and is_object(str(out)):
            return False
        return replaces_directory(self.plan, self._target(out, {"in_place": in_place, "overwrite": not in_place}))

    def execute(
        self, out: str | Path | None = None, *, progress: Progress | None = None, **options: Unpack[WriteOptions]
    ) -> Outcome:
        """Write the model to ``out``, or over its source with ``in_place``; verify it, then rename it into place.

        If a step fails, raises a `TieconvError`. The source is then unchanged, and ``out`` is absent or the old one.
        """
        if out is not None and is_object(str(out)):
            return self._execute_remote(str(out), progress, options)
        if self.fetch is not None:
            self.check(out, **options)
            return self._fetched_plan().execute(out, progress=progress, **options)
        target = self._target(out, options)
        notes = execute(self.plan, target, reinspect=self.reinspect, progress=progress)
        plan = replace(self.plan, notes=(*self.plan.notes, *notes))
        return Outcome(plan, executed=True, verified=True, output=str(target.path))

    def _execute_remote(self, out: str, progress: Progress | None, options: WriteOptions) -> Outcome:
        """Write below a new prefix: by copies of the server where it can, else from a temporary directory."""
        check_remote_target(self.plan, out, **_without_verify(options))
        writer, headers = writer_of(out), partial(self.reinspect, depth=Depth.HEADER)
        why = why_upload(self.plan, writer.path)
        if not why:
            from tieconv.execute.new_prefix import server_copy
            from tieconv.sources.objects.object_source import CopyUnsupportedError

            full = options.get("verify") == "full"
            try:
                transfer, notes = server_copy(self.plan, writer, headers, full=full, read=self._read, progress=progress)
            except CopyUnsupportedError:
                why = "the server cannot copy ranges"
            else:
                plan = replace(self.plan, notes=(*self.plan.notes, *notes))
                return Outcome(plan, executed=True, verified=True, output=out, remote=transfer)
        return self._upload(out, writer, headers, why, progress, options)

    def _upload(
        self,
        out: str,
        writer: ObjectWriter,
        headers: Callable[[Path], Inspection],
        why: str,
        progress: Progress | None,
        options: WriteOptions,
    ) -> Outcome:
        from tieconv.execute.new_prefix import upload
        from tieconv.sources.temporary import temporary_directory

        check_free(writer)
        verify: Verify = options.get("verify", "full")
        with temporary_directory() as directory:
            planned = self._fetched_plan() if self.fetch is not None else self
            local = Path(directory, "model")
            written = planned.execute(local, verify=verify)
            transfer = upload(
                written.plan,
                writer,
                local,
                headers,
                full=verify == "full",
                why=why,
                read=self._read + (sum(file.size for file in planned.plan.fingerprint.values()) if self.fetch else 0),
                progress=progress,
            )
        note = f"tieconv wrote the model to a temporary directory and uploaded it, because {why}"
        plan = replace(written.plan, notes=(*written.plan.notes, note))
        return Outcome(plan, executed=True, verified=True, output=out, remote=transfer)

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


def _without_verify(options: WriteOptions) -> Any:
    return {name: value for name, value in options.items() if name != "verify"}
