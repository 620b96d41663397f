"""Plans for matrices that a graph stores more than once: data for reports, no graph library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from enum import StrEnum

from tieconv.checkpoint.results.parity import Parity
from tieconv.checkpoint.value_type import Listed, Printed, record, values_of
from tieconv.checkpoint.write_plan import PLAN_SCHEMA, plan_facts, plan_rows
from tieconv.version import VERSION


class HeadForm(StrEnum):
    """How a head multiplies by a matrix that is stored as the embedding's [V, H]."""

    GEMM = "gemm"  # Reshape, Gemm(transB=1), Reshape: standard operators; the session holds one copy
    FUSED = "fused"  # com.microsoft FusedMatMul(transB=1): one node, ONNX Runtime only
    TRANSPOSE = "transpose"  # MatMul(x, Transpose(W)): one copy on disk, two in an ONNX Runtime session


@record
class SharedMatrix:
    """One matrix that a graph stores, or a session holds, more than once.

    ``kinds`` say how its copies relate: `identical`, `transposed`, `cast`, or `folded`. Folded is a Transpose or Cast
    that a session replaces by a second matrix. ``initializer`` is the copy that stays, ``dropped`` are the others,
    ``nodes`` the rewritten nodes. ``left`` says why copies stay (empty: none do). ``rounded`` says what besides a head
    the CPU provider may then round differently (empty: nothing). ``form`` is the form of its rewritten heads (``None``:
    no head was rewritten). ``avoided`` is what ``gemm`` may round differently (empty: nothing), the reason for another
    form. Bytes are on disk (``stored``) and in a session (``held``).
    """

    graph: str
    kinds: tuple[str, ...]
    initializer: str
    dropped: tuple[str, ...]
    nodes: tuple[str, ...]
    dtype: str
    shape: tuple[int, ...]
    stored_before: int
    stored_after: int
    held_before: int
    held_after: int
    left: str = ""
    copies_promised: int = 1
    rounded: str = ""
    form: HeadForm | None = None
    avoided: str = ""

    @property
    def done(self) -> bool:
        """Whether the plan changes anything about the matrix."""
        return bool(self.dropped or self.nodes)


@record
class SessionRuns(Listed):
    """Runs of the source and of the written graph with the same inputs. ``equal`` of them gave the same bits.

    ``differing`` are those that gave other bits, by how much. ``not_run`` are cases that the source does not run.
    """

    equal: int = 0
    cases: tuple[str, ...] = ()
    differing: tuple[str, ...] = ()
    not_run: tuple[str, ...] = ()


@record
class SessionProof:
    """What a session of the written graph holds: ``copies`` of each matrix, by the kept name.

    ``casts`` are the matrices that the session also holds in a wider type, to compute with. ``why_not`` says why
    nothing could be proved (empty: it was). ``runs`` are the runs that were compared; ``None`` if the source is gone.
    """

    graph: str
    copies: tuple[tuple[str, int], ...] = ()
    casts: tuple[str, ...] = ()
    why_not: str = ""
    runs: SessionRuns | None = None

    @property
    def proved(self) -> bool:
        return not self.why_not

    def to_dict(self) -> dict[str, object]:
        """Return the entry of an export."""
        return values_of(self, "proved why_not") | {"copies": dict(self.copies)}


@record
class GraphPlan:
    """Changes that a command makes to the graphs of MODEL; ``str()`` of its outcome is the `tieconv.plan/1` JSON.

    ``names`` are the graph files, ``changed`` those that are written anew. Bytes are of weights and graphs.
    """

    command: str
    source: str
    form: HeadForm
    names: tuple[str, ...]
    changed: tuple[str, ...]
    matrices: tuple[SharedMatrix, ...]
    bytes_read: int
    bytes_written: int
    bytes_linked: int
    bytes_before: int
    bytes_after: int
    notes: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        """One line."""
        return self._answer(self.matrices)

    def answer(self, name: str) -> str:
        """Return what the plan does with the graph ``name``, in one line."""
        return self._answer([matrix for matrix in self.matrices if matrix.graph == name])

    def _answer(self, matrices: Sequence[SharedMatrix]) -> str:
        done = sum(matrix.done for matrix in matrices)
        if not done:
            return "nothing to change"
        singular, plural = ("gets", "get") if self.command == "untie" else ("is", "are")
        outcome = "a copy for its heads" if self.command == "untie" else "stored once"
        return f"1 matrix {singular} {outcome}" if done == 1 else f"{done} matrices {plural} {outcome}"


@record
class GraphOutcome(Printed):
    """The outcome of a plan for graphs."""

    plan: GraphPlan
    executed: bool = False
    verified: bool = False
    output: str | None = None
    proofs: tuple[SessionProof, ...] = field(default_factory=tuple)

    def to_dict(self) -> dict[str, object]:
        """Return the document of schema `tieconv.plan/1`."""
        # Schema `tieconv.plan/1`, with the values of graphs under ``graphs``, ``matrices`` and ``proofs``.
        plan = self.plan
        operations: list[dict[str, object]] = []
        for matrix in plan.matrices:
            if not matrix.done:
                continue
            operations.append({"op": "KeepTensor", "name": matrix.initializer, "file": matrix.graph})
            op, why = "DropTensor", {"because": f"{' and '.join(matrix.kinds)} of {matrix.initializer}"}
            if plan.command == "untie":
                op, why = "CopyTensor", {"source": matrix.initializer}
            operations += [{"op": op, "name": name, **why, "file": matrix.graph} for name in matrix.dropped]
        return {
            "schema": PLAN_SCHEMA,
            "tieconv": VERSION,
            **values_of(plan, "command source"),
            "format": "onnx",
            "summary": plan.summary,
            "head_form": str(plan.form) if plan.command == "dedup" else None,
            "graphs": [{"name": n, "changed": n in plan.changed, "answer": plan.answer(n)} for n in plan.names],
            "operations": operations,
            "matrices": [_matrix(matrix) for matrix in plan.matrices],
            "files_removed": [],
            **values_of(plan, "notes bytes_before bytes_after bytes_read bytes_written bytes_linked"),
            **values_of(self, "executed verified"),
            "proofs": [{"graph": p.graph, **p.to_dict(), **values_of(p, "casts runs")} for p in self.proofs],
            "output": self.output,
        }

    def _facts(self) -> tuple[str, ...]:
        return plan_facts(self.plan.command, self.plan.source, self.output)

    def _rows(self) -> tuple[tuple[str, ...], ...]:
        return plan_rows(self.plan.summary, self.plan.notes)


def _matrix(matrix: SharedMatrix) -> dict[str, object]:
    names = "graph kinds kept=initializer dropped nodes head_form=form dtype shape"
    return values_of(matrix, f"{names} stored_before stored_after held_before held_after left")


PRECISIONS = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
"""The values of `--precision`, and torch's names for them."""


@record
class ExportOptions:
    """The values of the options of `tieconv export`, as `tieconv.plan_export` describes them.

    ``fuse`` and ``quantise`` are ``None`` if the graph is neither fused nor quantised. ``budget`` is in seconds. In a
    plan, ``head_form`` is what the head gets, and ``inputs_embeds`` says that a second graph makes the decoder's rows.
    """

    precision: str
    head_form: HeadForm
    opset: int | None
    provider: str
    parity: bool
    fuse: str | None
    layout: str
    quantise: str | None
    inputs_embeds: bool
    budget: float | None

    @property
    def dtype(self) -> str:
        """The precision as torch names it."""
        return PRECISIONS[self.precision]


# The plan and the outcome of `export`: data for reports, no graph library.
@record
class ExportPlan:
    """What `export` will export, and how.

    ``kind`` is what the graph computes, ``inputs`` are its inputs with their axes. ``tied`` are names of the checkpoint
    that become one parameter. ``bytes_read`` are the bytes of the weights. ``bytes_written`` is an estimate with each
    tied matrix once. ``copied`` maps the files copied unchanged to their bytes. ``left_out`` are the modules of the
    model that are not exported.
    """

    source: str
    architecture: str
    kind: str
    options: ExportOptions
    inputs: tuple[str, ...]
    tied: tuple[tuple[str, ...], ...]
    copied: Mapping[str, int]
    bytes_read: int
    bytes_written: int
    notes: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    @property
    def bytes_linked(self) -> int:
        return sum(self.copied.values())

    @property
    def summary(self) -> str:
        """One line."""
        tied = "tied matrix stored once" if self.tied else "nothing tied"
        precision = ", ".join(filter(None, (self.options.precision, self.options.quantise)))
        kind = f"{self.kind}, from inputs_embeds" if self.options.inputs_embeds else self.kind
        part = "language model of " if self.left_out else ""
        return f"{part}{self.architecture}, {kind}, {precision}, {tied}"

    def described(self) -> dict[str, object]:
        """Return the keys that the plan's document and `export.json` share: the model and the form of the graph."""
        chosen = values_of(self.options, "precision head_form fuse layout quantise")
        return {**values_of(self, "architecture kind"), **chosen}


@record
class ExportOutcome(Printed):
    """The outcome of the plan. ``executed`` is false if nothing was written, for example after a failed parity run.

    ``ties`` has, for every group that became one parameter, its names in the checkpoint. ``files`` are the bytes of the
    graph and its data. ``versions`` are those of the packages that made it.
    """

    plan: ExportPlan
    executed: bool = False
    verified: bool = False
    output: str | None = None
    matrices: tuple[SharedMatrix, ...] = ()
    proofs: tuple[SessionProof, ...] = ()
    parity: Parity | None = None
    files: Mapping[str, int] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, object]:
        """Return the document of schema `tieconv.plan/1`, with the values of an export under separate keys."""
        plan = self.plan
        return {
            "schema": PLAN_SCHEMA,
            "tieconv": VERSION,
            "command": "export",
            **values_of(plan, "source summary"),
            **plan.described(),
            **values_of(plan, "opset=options.opset inputs inputs_embeds=options.inputs_embeds"),
            **values_of(plan, "not_exported=left_out tied"),
            "operations": [],
            "files_removed": [],
            **values_of(plan, "notes bytes_read"),
            "bytes_written": sum(self.files.values()) if self.files else plan.bytes_written,
            "bytes_linked": plan.bytes_linked,
            **values_of(self, "executed verified output files"),
            "session": [proof.to_dict() for proof in self.proofs],
            **values_of(self, "parity versions"),
        }

    def _facts(self) -> tuple[str, ...]:
        return *plan_facts("export", self.plan.source, self.output), *(
            () if self.parity is None else (f"parity {self.parity.verdict}",)
        )

    def _rows(self) -> tuple[tuple[str, ...], ...]:
        return plan_rows(self.plan.summary, self.plan.notes)
