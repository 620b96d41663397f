"""Plan changes of graphs, and execute the plan."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Unpack

import onnx
import onnx_ir as ir

from tieconv.checkpoint.finding import Action
from tieconv.checkpoint.graph_plan import GraphOutcome, GraphPlan, HeadForm, SessionProof, SharedMatrix
from tieconv.checkpoint.graph_structure import RUNTIMES
from tieconv.checkpoint.model_files import Checkpoint, FileState, Layout, Listing
from tieconv.checkpoint.value_type import Printed, quoted, record
from tieconv.checkpoint.weight_file import WeightFile
from tieconv.checkpoint.write_plan import LinkFile, Plan, Promises, plan_rows
from tieconv.errors import RefusedError, TieconvError, VerificationError
from tieconv.execute.carry_out import carry_out
from tieconv.execute.file_layout import file_layout
from tieconv.execute.staging import sweep
from tieconv.execute.target import Target, check_target, destination, removal_notes, replaces_directory
from tieconv.execute.write import Progress
from tieconv.formats.onnx import SUFFIX, data_files, graph_names
from tieconv.onnx.graph_model import GraphFile, blamed_on_source, has_onnxruntime, read_sources
from tieconv.onnx.share.share_matrices import LEFT, share
from tieconv.onnx.share.untie import untie
from tieconv.onnx.write.data_placement import DATA, lay_out
from tieconv.onnx.write.session_proof import NOT_INSTALLED, check_still_equal, check_written, prove
from tieconv.planned import WriteOptions
from tieconv.sources.local import locate, open_files
from tieconv.text import NEW_OUT, Hint, shell_word, shown, size


@record
class PlannedGraphs(Printed):
    """What a command will do with the graphs of MODEL. ``print`` shows it as the command does."""

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
        store = lay_out(self.files, self.listing.named)
        named = self.listing.named
        data = {span.file for file in self.files for span in file.ranges}
        before = {**{file.name: file.size for file in self.files}, **{name: self.states[name].size for name in data}}
        after = {name: size for name, size in before.items() if name not in store.removed}
        if named is not None:
            after = {}
        after |= {file.name: file_layout(file).size for file in store.files}
        anew = {*store.graphs, *store.removed, *(file.name for file in store.data)}
        linked = 0 if named else sum(size for name, size in self.listing.entries.items() if name not in anew)
        return GraphPlan(
            command=self.command,
            source=self.listing.source,
            form=self.form,
            names=tuple(file.name for file in self.files),
            changed=tuple(store.graphs) if named is None or any(file.changed for file in self.files) else (),
            matrices=self.matrices,
            bytes_read=sum(file.nbytes for file in store.data),
            bytes_written=sum(file.nbytes for file in store.files),
            bytes_linked=linked,
            bytes_before=sum(before.values()),
            bytes_after=sum(after.values()),
            notes=self.notes,
        )

    def __str__(self) -> str:
        from tieconv.reporters.text.plan_text import render

        return render(self.outcome())

    def outcome(self, out: str | Path | None = None, *, overwrite: bool = False) -> GraphOutcome:
        """Return the plan without executing it. With ``overwrite`` its notes have the files that ``out`` loses."""
        target = self._target(out, overwrite=overwrite and out is not None)
        removed = removal_notes(self._written(target), target) if target.overwrite else ()
        return GraphOutcome(replace(self.plan, notes=(*self.plan.notes, *removed)))

    def check(self, out: str | Path | None = None, **options: Unpack[WriteOptions]) -> None:
        """Raise every refusal that is known before writing, as `execute` would."""
        target = self._target(out, **options)
        check_target(self._checked(target), target)

    def clear(self, out: str | Path | None = None, *, in_place: bool = False, resume: bool = False) -> None:
        """Remove what a killed run left beside ``out``, so that `check` does not refuse it. Graphs are not resumed."""
        sweep(destination(self._source, self._target(out, in_place=in_place)))

    def replaces_directory(self, out: str | Path | None = None, *, in_place: bool = False) -> bool:
        """Return whether writing replaces a whole directory, as of `PlannedWrite`."""
        target = self._target(out, in_place=in_place, overwrite=not in_place)
        return replaces_directory(self._written(target), target)

    def execute(
        self, out: str | Path | None = None, *, progress: Progress | None = None, **options: Unpack[WriteOptions]
    ) -> GraphOutcome:
        """Write to ``out``, or over the source with ``in_place``. Verify the bytes, the content and a session.

        The result is renamed only after that. If anything fails, raises a `TieconvError`, the source is unchanged, and
        ``out`` is absent or old.
        """
        target = self._target(out, **options)
        proofs: list[SessionProof] = []

        def prove_staged(staged: Path) -> None:
            lone = staged.name if self.listing.named else None
            proofs.extend(self._prove(staged.parent if lone else staged, lone))

        notes = carry_out(self._checked(target), target, prove_staged, progress, self._recheck)
        plan = replace(self.plan, notes=(*self.plan.notes, *notes))
        return GraphOutcome(plan, executed=True, verified=True, output=str(target.path), proofs=tuple(proofs))

    def _prove(self, new: Path, lone: str | None) -> Iterator[SessionProof]:
        for file in self.files:
            name = lone or file.name
            done = [replace(m, graph=name) for m in self.matrices if m.graph == file.name and m.done]
            if not file.changed:
                continue
            check_written(new, name, file, self.matrices if self.command == "dedup" else None)
            if self.command == "dedup":
                try:
                    yield prove(new, Path(file.root) / file.name, name, done)
                except VerificationError:
                    self._recheck()  # a source that another program changed gives other results
                    raise

    def _recheck(self) -> None:
        """Raise `StalePlanError` if shared initializers of the source are no longer equal."""
        if self.command == "dedup":
            for file in self.files:
                check_still_equal(
                    file, [matrix for matrix in self.matrices if matrix.graph == file.name and matrix.done]
                )

    def _target(self, out: str | Path | None, **options: Unpack[WriteOptions]) -> Target:
        path = Path(self.listing.source if options.get("in_place") or out is None else out)
        return replace(Target(path, **options), resume=False)

    @property
    def _source(self) -> Plan:
        """The plan in the form that `tieconv.execute` reads, without files to write."""
        listing, named = self.listing, self.listing.named
        graphs = (named,) if named else graph_names(listing)
        files = tuple(WeightFile(name, listing.entries[name], 0, (), None) for name in graphs)
        layout, special = (Layout.FILE, ()) if named else (Layout.SINGLE, listing.special)
        checkpoint = Checkpoint(listing.source, listing.root, layout, "onnx", files, special=special)
        return Plan(self.command, checkpoint, self.states, (), (), (), (), (), Promises(None, ()), "")

    def _written(self, target: Target) -> Plan:
        """Return the plan with the files to write; none if the graphs in place already are as requested."""
        plan, named = self._source, self.listing.named
        if target.in_place and not any(file.changed for file in self.files):
            return plan
        if named:
            lone = destination(plan, target).name
            store = lay_out(self.files, lone)
            if target.in_place:
                # The data gets another name than before: the old graph needs its data until the new graph has its name.
                # The name has a hash of the source, so a run after a killed run computes the same one.
                known = sorted(
                    (name, state.device, state.inode, state.size, state.mtime_ns) for name, state in self.states.items()
                )
                made_from = repr((f"{self.command} {self.form}", known)).encode()
                store = lay_out(self.files, lone, f"{lone}.{hashlib.sha256(made_from).hexdigest()[:12]}{DATA}")
                spans = {span.file for file in self.files for span in file.ranges}
                store = replace(store, removed=tuple(sorted(spans - {file.name for file in store.data})))
            return replace(plan, weights=(replace(store.graphs[lone], name=named), *store.data), removed=store.removed)
        store = lay_out(self.files, None)
        anew = {*store.removed, *(file.name for file in store.files)}
        # In place, only the data that graphs read is copied. All else is linked.
        unchanged = (name for name in (self.states if target.in_place else self.listing.entries) if name not in anew)
        links = tuple(LinkFile(name, self.listing.entries[name]) for name in unchanged)
        return replace(plan, weights=store.files, links=links, removed=store.removed)

    def _checked(self, target: Target) -> Plan:
        """Return the plan with the files to write. Raise what only graphs are refused for."""
        if target.hardlink:
            problem = f"--hardlink does not support ONNX graphs: {shown(self.listing.source)}"
            raise RefusedError(problem, NEW_OUT, "onnx.option")
        plan = self._written(target)
        if target.in_place and plan.removed:
            check_removed(self.listing, plan.removed, {output.name for output in plan.weights})
        return plan

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


# Replace graphs in place: check the conditions, and name the new data.


def check_removed(listing: Listing, removed: Sequence[str], written: set[str]) -> None:
    """Raise `RefusedError` if a data file that goes in place may hold more than the ``written`` graphs read."""
    for name in removed:
        # Such files may hold more than a graph's data.
        if name.lower().endswith((".safetensors", ".gguf", ".bin", ".pt", ".pth", ".json", SUFFIX)):
            problem = f"--in-place does not remove {shown(name)}, because it may hold more than the graph's data"
            raise RefusedError(problem, NEW_OUT, "in-place.data")
    for graph, read in _readers(listing, written):
        shared = sorted(read.intersection(removed))
        if shared:
            raise RefusedError(
                f"--in-place cannot replace one graph, because {shown(graph)} reads {shown(shared[0])} too",
                f"give the directory, so that all graphs change: {shell_word(listing.root)}",
                "in-place.shared-data",
            )


def _readers(listing: Listing, written: set[str]) -> Iterator[tuple[str, set[str]]]:
    """Yield every other graph below the directory, and the files that it reads."""
    around = locate(listing.root)
    others = [name for name in around.entries if name.lower().endswith(SUFFIX) and name not in written]
    with open_files(listing.root) as files:
        for name in others:
            try:
                yield name, data_files(listing.root, files, name)
            except TieconvError as error:
                problem = f"tieconv cannot read {shown(name)}, which may use the same data: {error.message}"
                hint = Hint("move it out of the directory, or ", NEW_OUT)
                raise RefusedError(problem, hint, "in-place.other-graph") from error


# Plan `dedup` of graphs: store every matrix once, on disk and in a session.


def plan_graph_dedup(listing: Listing, form: HeadForm | None = None) -> PlannedGraphs:
    """Return the plan that stores each matrix of MODEL's graphs once.

    Without a ``form``, each head gets the first form that keeps every bit of a session's result. Raises what reading
    the graphs raises.
    """
    matrices: list[SharedMatrix] = []
    with open_files(listing.root) as files:
        graphs = read_sources(listing, files)
        for graph in graphs:
            with blamed_on_source(graph):
                matrices += share(graph, files, form)
    notes = tuple(notes_of(matrices, lambda form: Action("dedup", listing.source, (("head_form", str(form)),)).command))
    used = form or _widest(matrices)
    return PlannedGraphs("dedup", used, listing, graphs, states_of(listing, graphs), tuple(matrices), notes)


def _widest(matrices: Sequence[SharedMatrix]) -> HeadForm:
    """Return the form that the plan reports. Of several, it is the form that the fewest runtimes support."""
    used = {matrix.form for matrix in matrices}
    return next((form for form in (HeadForm.TRANSPOSE, HeadForm.FUSED) if form in used), HeadForm.GEMM)


HELD_TWICE = f"a session of {RUNTIMES} folds the Transpose of a stored matrix, so it holds that matrix twice"


def notes_of(matrices: Sequence[SharedMatrix], command: Callable[[HeadForm], str]) -> list[str]:
    """Return what the user should know of the plan. ``command`` gives the command for another head form."""
    staying = [f"{m.graph}: {'some copies stay' if m.done else 'not changed'}: {m.left}" for m in matrices if m.left]
    notes = list(dict.fromkeys(staying))
    if any(matrix.held_after > matrix.stored_after for matrix in matrices if matrix.done):
        notes.append(HELD_TWICE)
    beside = list(dict.fromkeys(matrix.rounded for matrix in matrices if matrix.rounded))
    if beside:
        same_bits = "" if beside == [LEFT] else f"; to keep every bit: {command(HeadForm.FUSED)}"
        notes.append(f"{RUNTIMES} may round the last bits differently next to {', '.join(beside)}{same_bits}")
    avoided = list(dict.fromkeys(matrix.avoided for matrix in matrices if matrix.avoided))
    if avoided:
        fused = f"FusedMatMul keeps every bit next to {', '.join(avoided)}, but runs only in ONNX Runtime"
        notes.append(f"{fused}; for any runtime: {command(HeadForm.GEMM)}")
    if any(matrix.done for matrix in matrices) and not has_onnxruntime():
        notes.append(f"tieconv cannot count the copies in a session: {NOT_INSTALLED}")
    return notes


def plan_graph_untie(listing: Listing) -> PlannedGraphs:
    """Return the plan that gives every head which reads the embedding's matrix a separate one.

    The new matrix is [H, V], for a MatMul.
    """
    matrices: list[SharedMatrix] = []
    with open_files(listing.root) as files:
        graphs = read_sources(listing, files)
        for graph in graphs:
            with blamed_on_source(graph):
                matrices += untie(graph, files)
    notes = () if matrices else ("the graph has no matrix that both a Gather and a head read",)
    return PlannedGraphs("untie", HeadForm.GEMM, listing, graphs, states_of(listing, graphs), tuple(matrices), notes)


def split_at(directory: Path, name: str, values: Collection[str], first: str) -> None:
    """Write the nodes that compute ``values`` to the graph ``first``, and leave the rest in the graph ``name``.

    Both files are in ``directory``. ``values`` become outputs of the first graph and inputs of the rest. An initializer
    that both read is in both graphs, at one byte range of one data file. No data is copied. Raises
    `VerificationError` if a value is not in the graph or one part is not valid.
    """
    whole = ir.load(directory / name)
    ends, inputs, outputs = list(values), whole.graph.inputs, whole.graph.outputs
    try:
        made = {
            first: ir.convenience.extract(whole.graph, inputs, ends),
            name: ir.convenience.extract(whole.graph, [*ends, *inputs], outputs),
        }
    except ValueError as error:
        raise VerificationError(f"{shown(name)} cannot be split: {shown(error, 300)}", _HINT, "verify.split") from error
    for path, part in made.items():
        for value in [value for value in part.inputs if not value.uses()]:
            part.inputs.remove(value)
        whole.graph = part
        ir.save(whole, directory / path)
    for path in made:
        try:
            onnx.checker.check_model(str(directory / path))
        except Exception as error:  # the checker raises various exceptions
            message = f"written {shown(path)} is not valid: {shown(error, 300)}"
            raise VerificationError(message, _HINT, "verify.split") from error


_HINT = "nothing was written; report this with the model's class"
