"""Describe the quantised embedding and head of ONNX graphs as logical matrices, and compare them."""

from __future__ import annotations

from tieconv.checkpoint.files.interface import ByteReader
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.quantised_matrix import EMBEDDING, HEAD, QuantisedTables
from tieconv.inspection.quantised.config_sizes import hidden_size
from tieconv.inspection.quantised.pair_relation import relate_tables
from tieconv.inspection.quantised.schemes.onnx_blocks import describe
from tieconv.inspection.view_reader import turned


def survey_graphs(inspection: Inspection, reader: ByteReader) -> QuantisedTables | None:
    """Return the quantised matrices of the first graph that has some, or ``None``."""
    graph = next((graph for graph in inspection.checkpoint.graphs if graph.quantised), None)
    if graph is None:
        return None
    tensors, width = inspection.checkpoint.tensors, hidden_size(inspection)
    matrices = {read.role: describe(read, tensors, width) for read in graph.quantised if read.role in (EMBEDDING, HEAD)}
    if not matrices:
        return None
    floats = {role: read for role, read in ((EMBEDDING, graph.embedding), (HEAD, graph.head)) if read is not None}
    # A float matrix for a MatMul is [H, V]; the codes are by tokens.
    laid_out = {
        role: turned(tensors[read.name]) if read.turned else tensors[read.name] for role, read in floats.items()
    }
    tables = laid_out | matrices
    relation = None
    if len(tables) == 2:
        relation = relate_tables(tables[EMBEDDING], tables[HEAD], tensors, reader, inspection.depth)
    return QuantisedTables("", "", tuple(matrices.values()), relation)
