"""Prove that a session holds each tied quantised matrix once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tieconv.checkpoint.write_plan.graph import SessionProof, SharedMatrix
from tieconv.onnx.graph.initializers import GraphBytes
from tieconv.onnx.graph.model import read_graph
from tieconv.onnx.write.session_proof import prove
from tieconv.sources.local.files import open_files


def prove_once(directory: Path, graph: str, tied: Sequence[str]) -> SessionProof:
    """Return how often a session of ``graph`` holds each matrix of ``tied``, which are names of initializers.

    Raises `VerificationError` if it holds one more than once.
    """
    with open_files(directory) as files:
        file = read_graph(str(directory), graph, files)
        stored = {str(entry.value.name): entry.record for entry in GraphBytes(file, files).stored(1)}
    matrices = [
        SharedMatrix(
            graph=graph,
            kinds=("quantised",),
            initializer=name,
            dropped=(),
            nodes=(),
            dtype="UINT8",
            shape=stored[name].shape,
            stored_before=stored[name].nbytes,
            stored_after=stored[name].nbytes,
            held_before=stored[name].nbytes,
            held_after=stored[name].nbytes,
        )
        for name in tied
        if name in stored
    ]
    return prove(directory, directory / graph, graph, matrices)
