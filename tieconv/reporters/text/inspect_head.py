"""The rows of an inspection that name the input embedding, the output head and its bias."""

from __future__ import annotations

from tieconv.checkpoint.family import Knowledge
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.quantised_matrix import PairState, parametrised_parts
from tieconv.checkpoint.tie_group import BiasState
from tieconv.text import shown

Row = tuple[str, ...]


def embedding_row(inspection: Inspection) -> Row:
    """Return the row of the input embedding: its name and shape, or why there is none."""
    embedding = inspection.head.input_embedding
    if embedding:
        stored = f"{_shape(embedding.shape)} {shown(embedding.dtype)}{_operator(inspection, 'embedding')}"
        return "input embedding", shown(embedding.name), stored
    pieces = inspection.head.embedding_pieces
    if pieces:
        rows = sum(piece.shape[0] for piece in pieces)
        whole = f"{_shape((rows, *pieces[0].shape[1:]))} {shown(pieces[0].dtype)}"
        return "input embedding", " + ".join(shown(piece.name) for piece in pieces), f"{whole} in {len(pieces)} tensors"
    if inspection.family.input_embedding and _in_parts(inspection, "embedding"):
        return "input embedding", shown(inspection.family.input_embedding), _parts(inspection, "embedding")
    return ("input embedding", *(_quantised(inspection, "embedding") or (_no_embedding(inspection),)))


def output_row(inspection: Inspection) -> Row:
    """Return the row of the output head: stored, tied to another tensor, or why there is none."""
    output = inspection.head.output_head
    if output is None:
        known = inspection.family.knowledge is Knowledge.TABLE
        absent = ("none: this architecture has none" if known else "none found",)
        if inspection.checkpoint.adapter is not None or not inspection.checkpoint.tensors:
            absent = (_no_embedding(inspection),)
        return ("output head", *(_quantised(inspection, "head") or absent))
    if output.stored:
        stored = f"{_shape(output.shape or ())} {shown(output.dtype)}{_operator(inspection, 'head')}"
        return "output head", shown(output.name), stored
    if _in_parts(inspection, "head"):
        return "output head", shown(output.name), _parts(inspection, "head")
    if output.tied_to:
        return "output head", shown(output.name), f"not stored, tied to {shown(output.tied_to)}"
    tied = any(tie.declared and output.name in {member.name for member in tie.members} for tie in inspection.ties)
    if _in_parts(inspection, "embedding") and inspection.config.effective:
        return "output head", shown(output.name), "not stored; the config ties it to the quantised embedding"
    return "output head", shown(output.name), f"not stored{', nor any tensor tied to it' if tied else ''}"


def bias_row(inspection: Inspection) -> Row:
    """Return the row of the head bias and what it holds."""
    bias = inspection.head.output_bias
    if bias is None or (bias.state is BiasState.ABSENT and not inspection.family.output_biases):
        return "head bias", "none"
    words = {
        BiasState.ABSENT: "not stored",
        BiasState.ZERO: "all zero",
        BiasState.NONZERO: "not zero" + (f", largest magnitude {bias.max_abs:.4g}" if bias.max_abs else ""),
        BiasState.UNREAD: "not read",
    }
    return "head bias", shown(bias.name), words[bias.state]


def _no_embedding(inspection: Inspection) -> str:
    """Return why there is no embedding to show: ``not stored`` if its name is known, else ``none found``."""
    if inspection.checkpoint.adapter is not None:
        return "none: an adapter has none"
    if not inspection.checkpoint.tensors:
        return "none: the file holds no tensors"
    return "not stored" if inspection.family.input_embedding else "none found"


def _operator(inspection: Inspection, role: str) -> str:
    """Name the operator that computes with the quantised matrix of a graph."""
    heads = [read for graph in inspection.checkpoint.graphs for read in graph.quantised if read.role == role]
    return f", quantised ({shown(heads[0].operator)})" if heads else ""


def _in_parts(inspection: Inspection, role: str) -> bool:
    """Return whether the matrix in ``role`` is quantised, so that a separate block describes it."""
    return inspection.quantised is not None and inspection.quantised.of(role) is not None


def _parts(inspection: Inspection, role: str) -> str:
    matrix = inspection.quantised.of(role) if inspection.quantised is not None else None
    kind = "parametrised" if matrix is not None and parametrised_parts(matrix) else "quantised"
    return f"{kind}, stored in parts"


def _quantised(inspection: Inspection, role: str) -> tuple[str, ...]:
    """Return the cells for the quantised matrix of a graph in ``role``, or nothing."""
    heads = [read for graph in inspection.checkpoint.graphs for read in graph.quantised if read.role == role]
    relation = inspection.quantised.relation if inspection.quantised else None
    compared = relation is not None and relation.state is not PairState.UNREAD
    return (
        (shown(heads[0].name), f"quantised ({shown(heads[0].operator)}){'' if compared else ', not compared'}")
        if heads
        else ()
    )


def _shape(shape: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, shape))}]"
