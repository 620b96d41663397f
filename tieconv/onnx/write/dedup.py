"""Plan `dedup` of graphs: store every matrix once, on disk and in a session."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from onnx_ir.passes import PreconditionError

from tieconv.checkpoint.files.model_files import Listing
from tieconv.checkpoint.finding import Action
from tieconv.checkpoint.write_plan.graph import RUNTIMES, HeadForm, SharedMatrix
from tieconv.onnx.graph.model import GraphFile, blamed_on_source, read_sources
from tieconv.onnx.graph.packages import has_onnxruntime
from tieconv.onnx.share import SharePass
from tieconv.onnx.share.apply import LEFT
from tieconv.onnx.write.plan import PlannedGraphs, states_of
from tieconv.onnx.write.session_proof import NOT_INSTALLED
from tieconv.sources.local.files import FileSet, open_files


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
                matrices += _share(graph, files, form)
    notes = tuple(notes_of(matrices, partial(_again, listing.source)))
    used = form or _widest(matrices)
    return PlannedGraphs("dedup", used, listing, graphs, states_of(listing, graphs), tuple(matrices), notes)


def _widest(matrices: Sequence[SharedMatrix]) -> HeadForm:
    """Return the form that the plan reports. Of several, it is the form that the fewest runtimes support."""
    used = {matrix.form for matrix in matrices}
    return next((form for form in (HeadForm.TRANSPOSE, HeadForm.FUSED) if form in used), HeadForm.GEMM)


def _again(source: str, form: HeadForm) -> str:
    return Action("dedup", source, (("--head-form", str(form)),)).command


HELD_TWICE = f"a session of {RUNTIMES} folds the Transpose of a stored matrix, so it holds that matrix twice"


def _share(graph: GraphFile, files: FileSet, form: HeadForm | None) -> tuple[SharedMatrix, ...]:
    share = SharePass(graph, files, form)
    try:
        share(graph.model)
    except PreconditionError as error:
        share.left(str(error))
    return share.matrices


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
