"""`dedup` of graphs: every matrix once, on disk and in a session."""

from __future__ import annotations

from collections.abc import Sequence

from onnx_ir.passes import PreconditionError

from tieconv.checkpoint.finding import Action
from tieconv.checkpoint.graph import RUNTIMES, HeadForm, SharedMatrix
from tieconv.checkpoint.records import Listing
from tieconv.onnx.graph import GraphFile, blamed_on_source, read_sources
from tieconv.onnx.graph_packages import has_onnxruntime
from tieconv.onnx.graph_planned import PlannedGraphs, states_of
from tieconv.onnx.graph_proof import NOT_INSTALLED
from tieconv.onnx.share import SharePass
from tieconv.onnx.share.apply import LEFT
from tieconv.sources.local import FileSet, open_files


def plan_graph_dedup(listing: Listing, form: HeadForm = HeadForm.GEMM) -> PlannedGraphs:
    """The plan that stores each matrix of the graphs that MODEL names once. Raises what reading them raises."""
    matrices: list[SharedMatrix] = []
    with open_files(listing.root) as files:
        graphs = read_sources(listing, files)
        for graph in graphs:
            with blamed_on_source(graph):
                matrices += _share(graph, files, form)
    notes = tuple(_notes(listing, matrices))
    return PlannedGraphs("dedup", form, listing, graphs, states_of(listing, graphs), tuple(matrices), notes)


HELD_TWICE = f"a session of {RUNTIMES} folds the Transpose of a stored matrix, so it holds that matrix twice"


def same_bits(source: str, rounded: Sequence[str]) -> str:
    """The command for the form that keeps every bit on ONNX Runtime, where one does."""
    if list(rounded) == [LEFT]:
        return ""
    return f"; the same bits: {Action('dedup', source, (('--head-form', 'fused'),)).command}"


def _share(graph: GraphFile, files: FileSet, form: HeadForm) -> tuple[SharedMatrix, ...]:
    share = SharePass(graph, files, form)
    try:
        share(graph.model)
    except PreconditionError as error:
        share.left(str(error))
    return share.matrices


def _notes(listing: Listing, matrices: list[SharedMatrix]) -> list[str]:
    """What the user should know of the plan."""
    found = [f"{matrix.graph}: left as it is: {matrix.left}" for matrix in matrices if matrix.left]
    if any(matrix.held_after > matrix.stored_after for matrix in matrices if matrix.done):
        found.append(HELD_TWICE)
    beside = list(dict.fromkeys(matrix.rounded for matrix in matrices if matrix.rounded))
    if beside:
        told = f"{RUNTIMES} may round otherwise, in the last bits, beside {', '.join(beside)}"
        found.append(told + same_bits(listing.source, beside))
    if any(matrix.done for matrix in matrices) and not has_onnxruntime():
        found.append(f"the copies that a session holds will not be proved: {NOT_INSTALLED}")
    return found
