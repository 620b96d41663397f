"""Plan `untie` of graphs: store the head's matrix as a separate initializer."""

from __future__ import annotations

from tieconv.checkpoint.files.model_files import Listing
from tieconv.checkpoint.write_plan.graph import HeadForm, SharedMatrix
from tieconv.onnx.graph.model import blamed_on_source, read_sources
from tieconv.onnx.share.untie import untie
from tieconv.onnx.write.plan import PlannedGraphs, states_of
from tieconv.sources.local.files import open_files


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
