"""What the rules QNT006 to QNT008 ask about a quantised embedding and head."""

from __future__ import annotations

from tieconv.checkpoint.family import Tying
from tieconv.checkpoint.finding import Remedy
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.quantised_matrix import EMBEDDING, HEAD, PairRelation, QuantisedTables
from tieconv.checks import remedies

LOADED_UNTIED = ("compressed-tensors pack-quantized", "MLX", "bitsandbytes")
"""Starts of the schemes that no loader loads worse with the flag false than with the flag true."""


def tables(inspection: Inspection) -> QuantisedTables | None:
    """Return the quantised tables of a checkpoint of a class that can tie, ``None`` for any other model."""
    ties = inspection.family.tying is Tying.CAN
    return inspection.quantised if ties and inspection.checkpoint.format in ("safetensors", "torch") else None


def names(inspection: Inspection) -> tuple[str, str]:
    """Return the names of the embedding and the head."""
    pair = tables(inspection)
    matrices = {matrix.role: matrix.name for matrix in pair.matrices} if pair else {}
    family = inspection.family
    embedding = matrices.get(EMBEDDING) or family.input_embedding or ""
    return embedding, matrices.get(HEAD) or family.output_head or ""


def relation(inspection: Inspection) -> PairRelation | None:
    """Return the proved relation of the head to a quantised embedding."""
    pair = tables(inspection)
    return pair.relation if pair is not None and pair.of(EMBEDDING) is not None else None


def remedy(inspection: Inspection, verb: str, *schemes: str) -> Remedy | None:
    """Return the command for matrices of one of the ``schemes``, for which no loader gets worse; else ``None``."""
    pair = tables(inspection)
    known = pair is not None and all(matrix.scheme.startswith(schemes) for matrix in pair.matrices)
    return remedies.of_parts(inspection, verb) if known else None
