"""Recognise ONNX graphs, and plan the commands that only graphs have."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tieconv.errors import RefusedError, UnreadableError
from tieconv.formats import holds_graphs
from tieconv.sources import is_remote
from tieconv.sources.local.files import locate
from tieconv.text import shown

if TYPE_CHECKING:
    from pathlib import Path

    from tieconv.checkpoint.model_files import Listing
    from tieconv.onnx.write.plan import PlannedGraphs


def is_graph(path: str | Path = ".") -> bool:
    """Return whether MODEL is an ONNX graph or a directory of graphs, which have separate functions.

    Return false for a remote model, of which tieconv reads only checkpoints.
    """
    return not is_remote(str(path)) and holds_graphs(locate(str(path)))


def refuse_graphs(*paths: str | Path) -> None:
    """Raise `UnreadableError` if a path is an ONNX graph or a directory of graphs."""
    for path in paths:
        if is_graph(path):
            name = shown(os.path.basename(os.path.abspath(path)))
            raise UnreadableError(
                f"{name} is an ONNX graph, and this command reads only checkpoints",
                "tieconv inspect, check, dedup and untie read graphs; tieconv parity compares them with checkpoints",
                "format.unsupported",
            )


def plan_graph_dedup(path: str | Path = ".", *, head_form: str | None = None) -> PlannedGraphs:
    """Plan to store each matrix of ONNX graphs once; matrices with equal content count as one.

    ``head_form`` is ``gemm``, ``fused`` or ``transpose``. Without it, each head gets the first form that keeps every
    bit of a session's results. If none does, the matrix stays as it is. Raises `UnsafePathError` for external data that
    is a link or lies outside the graph's directory. Raises `RefusedError` without the packages that read graphs.
    """
    from tieconv.checkpoint.graph_plan import HeadForm
    from tieconv.onnx.graph_model import require_graph_packages

    require_graph_packages()
    from tieconv.onnx.write.plan import plan_graph_dedup as make

    return make(_readable(path), None if head_form is None else HeadForm(head_form))


def plan_graph_untie(path: str | Path = ".") -> PlannedGraphs:
    """Plan a separate matrix for each head of ONNX graphs that reads the embedding's matrix.

    Raises the errors of `plan_graph_dedup`.
    """
    from tieconv.onnx.graph_model import require_graph_packages

    require_graph_packages()
    from tieconv.onnx.write.plan import plan_graph_untie as make

    return make(_readable(path))


def _readable(path: str | Path) -> Listing:
    """Return the listing of a readable path. Raises `RefusedError` for a graph that no session opens."""
    from tieconv.checkpoint.model_files import REFUSED_BY_READER
    from tieconv.formats import read_checkpoint
    from tieconv.onnx.child import check_opens
    from tieconv.sources.local.files import open_files

    listing = locate(str(path))
    with open_files(listing.root) as files:
        checkpoint = read_checkpoint(listing, files)
    for caution in checkpoint.cautions:
        if caution.code == REFUSED_BY_READER:
            raise RefusedError(f"nothing is written: {caution.message}", "export the model again", REFUSED_BY_READER)
    for graph in checkpoint.graphs:
        check_opens(listing.root, graph.file)
    return listing
