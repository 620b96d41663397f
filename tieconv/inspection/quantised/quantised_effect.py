"""Say whether the loaded model is tied, if the embedding or the head is quantised."""

from __future__ import annotations

from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.quantised import parametrised_parts
from tieconv.checkpoint.quantised_matrix import EMBEDDING, HEAD, PairState, QuantisedTables

_NAMES = {EMBEDDING: "input embedding", HEAD: "output head"}


def quantised_effect(inspection: Inspection, tables: QuantisedTables) -> str:
    """Return what follows for the tie, in two or three sentences; empty if the config alone decides."""
    broken = next((matrix for matrix in tables.matrices if matrix.faults), None)
    if broken is not None:
        return f"Unknown: the quantised {_NAMES[broken.role]} is broken."
    unread = next((matrix for matrix in tables.matrices if not matrix.scheme), None)
    if unread is not None and parametrised_parts(unread):
        return f"Unknown: the {_NAMES[unread.role]} is parametrised, and loaders do not find its weight."
    if unread is not None:
        return f"Unknown: tieconv does not know how the {_NAMES[unread.role]} is quantised."
    if not inspection.config.effective:
        return ""
    head = tables.of(HEAD)
    if head is not None and _equal(tables):
        return "Tied by the config, and every part of the quantised head equals the embedding's."
    if head is not None or _head_is_stored(inspection):
        quantised = _NAMES[HEAD if head is not None else EMBEDDING]
        return f"Unknown: the config says tied, but the {quantised} is quantised separately. The loader decides."
    if inspection.checkpoint.format == "gguf":
        embedding = tables.of(EMBEDDING)
        scheme = embedding.scheme.removeprefix("ggml ") if embedding else ""
        return f"{inspection.config.why} The head computes with its type, {scheme}."
    return f"{inspection.config.why} The embedding is quantised, and some loaders do not tie quantised matrices."


def _equal(tables: QuantisedTables) -> bool:
    return tables.relation is not None and tables.relation.state is PairState.EQUAL


def _head_is_stored(inspection: Inspection) -> bool:
    head = inspection.head.output_head
    return head is not None and head.stored
