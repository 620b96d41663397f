"""ONNX graphs: which paths are some, and the plans that only they have."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tieconv.errors import RefusedError, UnreadableError
from tieconv.formats import holds_graphs
from tieconv.sources import is_hub
from tieconv.sources.local.files import locate
from tieconv.text import shown

if TYPE_CHECKING:
    from pathlib import Path

    from tieconv.checkpoint.files.model_files import Listing
    from tieconv.onnx.write.plan import PlannedGraphs


def is_graph(path: str | Path = ".") -> bool:
    """Whether MODEL is an ONNX graph or a directory of graphs, for which there are functions of their own.

    Of the Hub only checkpoints are read.
    """
    return not is_hub(str(path)) and holds_graphs(locate(str(path)))


def refuse_graphs(*paths: str | Path) -> None:
    """Raise `UnreadableError` where a path is an ONNX graph or a directory of graphs: the command takes none."""
    for path in paths:
        if is_graph(path):
            raise UnreadableError(
                f"{shown(os.path.basename(os.path.abspath(path)))} is an ONNX graph, which this command does not take",
                "tieconv inspect, check, dedup and untie take graphs; tieconv parity compares one with its checkpoint",
                "format.unsupported",
            )


def plan_graph_dedup(path: str | Path = ".", *, head_form: str | None = None) -> PlannedGraphs:
    """The plan that stores each matrix of ONNX graphs once, found by content.

    ``head_form`` is ``gemm``, ``fused`` or ``transpose``; without it each head gets the first of them that keeps every
    bit of what a session computes, and a matrix for which none does stays. Raises `UnsafePathError` for external data
    outside the graph's directory or linked, `RefusedError` where the packages that read graphs are missing.
    """
    from tieconv.checkpoint.write_plan.graph import HeadForm
    from tieconv.onnx.graph.packages import require_graph_packages

    require_graph_packages()
    from tieconv.onnx.write.dedup import plan_graph_dedup as make

    return make(_readable(path), None if head_form is None else HeadForm(head_form))


def plan_graph_untie(path: str | Path = ".") -> PlannedGraphs:
    """The plan that gives each head of ONNX graphs which reads the embedding's matrix one of its own.

    Raises as `plan_graph_dedup` does.
    """
    from tieconv.onnx.graph.packages import require_graph_packages

    require_graph_packages()
    from tieconv.onnx.write.untie import plan_graph_untie as make

    return make(_readable(path))


def _readable(path: str | Path) -> Listing:
    """Return what a path names, once `inspect` can read it and reports no graph that ONNX refuses.

    Raises as reading does, and `RefusedError`.
    """
    from tieconv.checkpoint.files.cautions import REFUSED_BY_READER
    from tieconv.formats import read_checkpoint
    from tieconv.sources.local.files import open_files

    listing = locate(str(path))
    with open_files(listing.root) as files:
        checkpoint = read_checkpoint(listing, files)
    for caution in checkpoint.cautions:
        if caution.code == REFUSED_BY_READER:
            raise RefusedError(f"nothing is written: {caution.message}", "export the model again", REFUSED_BY_READER)
    return listing
