"""What becomes of the matrices that a graph stores more than once: data for reports, no graph library."""

from __future__ import annotations

from dataclasses import field
from enum import StrEnum

from tieconv.checkpoint.record import record


class HeadForm(StrEnum):
    """How a head multiplies by a matrix that is stored as the embedding's [V, H]."""

    GEMM = "gemm"  # Reshape, Gemm(transB=1), Reshape: standard operators, one copy in the session
    FUSED = "fused"  # com.microsoft FusedMatMul(transB=1): one node, ONNX Runtime only
    TRANSPOSE = "transpose"  # MatMul(x, Transpose(W)): one copy on disk, two in an ONNX Runtime session


@record
class SharedMatrix:
    """One matrix of a graph that is stored, or held by a session, more than once.

    ``kinds`` say how its copies relate (`identical`, `transposed`, `cast`, `folded`: a Transpose or Cast that a session
    replaces by a second matrix). ``kept`` and ``dropped`` are initializer names, ``nodes`` the rewritten nodes.
    ``left`` says why copies stay (empty: none do). Bytes are on disk (``stored``) and in a session (``held``).
    """

    graph: str
    kinds: tuple[str, ...]
    kept: str
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

    @property
    def done(self) -> bool:
        """Whether anything about it changes."""
        return bool(self.dropped or self.nodes)


@record
class SessionProof:
    """What a session of the written graph holds: ``copies`` of each matrix, by the kept name.

    ``casts`` are the matrices of which it made another in a wider type to compute with. ``why_not`` says why nothing
    could be proved (empty: it was).
    """

    graph: str
    copies: tuple[tuple[str, int], ...] = ()
    casts: tuple[str, ...] = ()
    why_not: str = ""

    @property
    def proved(self) -> bool:
        return not self.why_not


@record
class GraphPlan:
    """What a command will do to the graphs of MODEL; ``str()`` of its outcome is the `tieconv.plan/1` JSON.

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
        done = sum(matrix.done for matrix in self.matrices)
        if not done:
            return "nothing to change"
        one, many = ("gets", "get") if self.command == "untie" else ("is", "are")
        what = "a copy for its heads" if self.command == "untie" else "stored once"
        return f"1 matrix {one} {what}" if done == 1 else f"{done} matrices {many} {what}"


@record
class GraphOutcome:
    """What became of a plan for graphs."""

    plan: GraphPlan
    executed: bool = False
    verified: bool = False
    output: str | None = None
    proofs: tuple[SessionProof, ...] = field(default_factory=tuple)

    def to_dict(self) -> dict[str, object]:
        """The document of schema `tieconv.plan/1`."""
        from tieconv.checkpoint.graph_document import graph_document

        return graph_document(self)

    def __str__(self) -> str:
        import json

        return json.dumps(self.to_dict(), indent=2, ensure_ascii=True)
