"""Plan changes of graphs, and execute the plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tieconv.checkpoint.files.model_files import FileState, Listing
from tieconv.checkpoint.json_values import Printed, quoted
from tieconv.checkpoint.value_type import record
from tieconv.checkpoint.write_plan.graph import GraphOutcome, GraphPlan, HeadForm, SessionProof, SharedMatrix
from tieconv.checkpoint.write_plan.plan import plan_rows
from tieconv.errors import VerificationError
from tieconv.execute.staging import sweep
from tieconv.execute.target import Target
from tieconv.onnx.graph.model import GraphFile
from tieconv.onnx.write.data_placement import Store, lay_out
from tieconv.onnx.write.in_place import data_name, old_data
from tieconv.onnx.write.read_again import check_still_equal, check_written
from tieconv.onnx.write.session_proof import prove
from tieconv.onnx.write.target import GraphTarget, check
from tieconv.onnx.write.write import Progress, write
from tieconv.planned import Verify
from tieconv.sources.local.files import open_files
from tieconv.text import size


@record
class PlannedGraphs(Printed):
    """What a command will do with the graphs of MODEL. ``str()`` gives the `tieconv.plan/1` JSON."""

    command: str
    form: HeadForm
    listing: Listing
    files: tuple[GraphFile, ...]
    states: dict[str, FileState]
    matrices: tuple[SharedMatrix, ...]
    notes: tuple[str, ...] = ()

    @property
    def plan(self) -> GraphPlan:
        """The plan as data."""
        store = self._store(self.listing.named)
        named = self.listing.named
        data = {span.file for file in self.files for span in file.ranges}
        before = {**{file.name: file.size for file in self.files}, **{name: self.states[name].size for name in data}}
        after = {name: size for name, size in before.items() if name not in store.removed}
        if named is not None:
            after = {}
        after |= {name: len(graph) for name, graph in store.graphs.items()}
        after |= {file.name: file.size for file in store.data}
        anew = {*store.graphs, *store.removed, *(file.name for file in store.data)}
        linked = 0 if named else sum(size for name, size in self.listing.entries.items() if name not in anew)
        return GraphPlan(
            command=self.command,
            source=self.listing.source,
            form=self.form,
            names=tuple(file.name for file in self.files),
            changed=tuple(store.graphs),
            matrices=self.matrices,
            bytes_read=sum(file.nbytes for file in store.data),
            bytes_written=store.bytes_written,
            bytes_linked=linked,
            bytes_before=sum(before.values()),
            bytes_after=sum(after.values()),
            notes=self.notes,
        )

    def outcome(self) -> GraphOutcome:
        """Return the plan without executing it."""
        return GraphOutcome(self.plan)

    def check(
        self,
        out: str | Path | None = None,
        *,
        in_place: bool = False,
        overwrite: bool = False,
        hardlink: bool = False,
        verify: Verify = "full",
    ) -> None:
        """Raise every refusal that is known before writing, as `execute` would."""
        target = self._target(out, in_place, overwrite, hardlink, verify)
        if not self._is_done(target):
            check(target, self._target_store(target))

    def clear(self, out: str | Path | None = None, *, in_place: bool = False) -> None:
        """Remove what a killed run left beside ``out``, so that `check` does not refuse it."""
        sweep(self._target(out, in_place, False, False, "full").final)

    def execute(
        self,
        out: str | Path | None = None,
        *,
        in_place: bool = False,
        overwrite: bool = False,
        hardlink: bool = False,
        verify: Verify = "full",
        progress: Progress | None = None,
    ) -> GraphOutcome:
        """Write to ``out``, or over the source with ``in_place``. Verify the bytes, the content and a session.

        The result is renamed only after that. If anything fails, raises a `TieconvError`, the source is unchanged, and
        ``out`` is absent or old.
        """
        target = self._target(out, in_place, overwrite, hardlink, verify)
        lone = self._lone(target)
        if self._is_done(target):
            sweep(target.final)  # files of a run that was killed after the rename
            return GraphOutcome(self.plan, executed=True, verified=True, output=str(target.target.path))
        written = write(target, self._target_store(target), lambda new: self._prove(new, lone), progress, self._recheck)
        plan = replace(self.plan, notes=(*self.plan.notes, *written.notes))
        return GraphOutcome(plan, executed=True, verified=True, output=str(target.target.path), proofs=written.proofs)

    def _is_done(self, target: GraphTarget) -> bool:
        """Return whether the graphs in place already are as requested."""
        return target.target.in_place and not any(file.changed for file in self.files)

    def _prove(self, new: Path, lone: str | None) -> tuple[SessionProof, ...]:
        """Return the proofs of the graphs that changed."""
        proofs = []
        for file in self.files:
            name = lone or file.name
            done = [replace(m, graph=name) for m in self.matrices if m.graph == file.name and m.done]
            if not file.changed:
                continue
            check_written(new, name, file, self.matrices if self.command == "dedup" else None)
            if self.command == "dedup":
                try:
                    proofs.append(prove(new, Path(file.root) / file.name, name, done))
                except VerificationError:
                    self._recheck()  # a source that another program changed gives other results
                    raise
        return tuple(proofs)

    def _recheck(self) -> None:
        """Raise `StalePlanError` if shared initializers of the source are no longer equal."""
        if self.command == "dedup":
            for file in self.files:
                check_still_equal(
                    file, [matrix for matrix in self.matrices if matrix.graph == file.name and matrix.done]
                )

    def _target(
        self, out: str | Path | None, in_place: bool, overwrite: bool, hardlink: bool, verify: Verify
    ) -> GraphTarget:
        path = Path(self.listing.source if in_place or out is None else out)
        return GraphTarget(self.listing, self.states, Target(path, in_place, overwrite, hardlink, verify))

    def _lone(self, target: GraphTarget) -> str | None:
        return target.final.name if target.is_file else None

    def _store(self, lone: str | None) -> Store:
        return lay_out(self.files, lone)

    def _target_store(self, target: GraphTarget) -> Store:
        lone = self._lone(target)
        if lone is None or not target.target.in_place:
            return self._store(lone)
        store = lay_out(self.files, lone, data_name(lone, f"{self.command} {self.form}", self.states))
        spans = [span for file in self.files for span in file.ranges]
        return replace(store, removed=old_data(spans, (file.name for file in store.data)))

    def to_dict(self) -> dict[str, object]:
        """Return the document of schema `tieconv.plan/1`."""
        return self.outcome().to_dict()

    def _facts(self) -> tuple[str, ...]:
        return quoted(self.listing.source), self.command, f"writes {size(self.plan.bytes_written)}"

    def _rows(self) -> tuple[tuple[str, ...], ...]:
        return plan_rows(self.plan.summary, self.notes)


def states_of(listing: Listing, files: Sequence[GraphFile]) -> dict[str, FileState]:
    """Return the state of every file that the graphs were read from."""
    names = {file.name for file in files} | {span.file for file in files for span in file.ranges}
    with open_files(listing.root) as opened:
        return {name: opened.state(name) for name in sorted(names)}
