"""Render the quantised embedding and head of an inspection: each is one matrix in several parts."""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.quantised_matrix import (
    ErrorFigures,
    PairRelation,
    PairState,
    QuantisedMatrix,
    QuantisedTables,
    Verdict,
)
from tieconv.text import listed, shown, size

Row = tuple[str, ...]

_STATES = {
    PairState.EQUAL: "equal: the scheme and every byte of every part",
    PairState.EQUAL_VALUES: "equal after dequantising: the parts differ, every value is equal",
    PairState.COPY: "a quantised copy: every value rounds to its code",
    PairState.CALIBRATED_COPY: "a calibrated copy: the error is small, but more than rounding leaves",
    PairState.DIFFERENT: "different",
    PairState.UNREAD: "not compared",
}


def quantised_rows(tables: QuantisedTables) -> Iterator[Row]:
    """Yield the rows of both matrices, their parts, the config, and how the two relate."""
    for matrix in tables.matrices:
        label = "input embedding" if matrix.role == "embedding" else "output head"
        yield label, shown(matrix.name), _described(matrix)
        for part in matrix.parts:
            shape = ", ".join(map(str, part.shape))
            yield "", f"  {part.role.replace('_', ' ')}", f"{shown(part.name)} [{shape}] {shown(part.dtype)}"
        if matrix.config.verdict is not Verdict.UNDECIDED:
            verdict = str(matrix.config.verdict).replace("_", " ")
            entry = f" ({shown(matrix.config.entry)})" if matrix.config.entry else ""
            yield "", "  config", f"{verdict}{entry}"
        for fault in matrix.faults:
            yield "", "  broken", fault.reason
        if matrix.uncomputed:
            yield "", "  not read", matrix.uncomputed
    if tables.relation is not None:
        yield "head and embedding", related(tables.relation)


def _described(matrix: QuantisedMatrix) -> str:
    shape = f"[{matrix.shape[0]}, {matrix.shape[1]}] " if matrix.shape else ""
    bits = f", {matrix.bits} bits" if matrix.bits else ""
    return f"{shape}{matrix.scheme or 'unknown scheme'}{bits}{_grouped(matrix)}, {size(matrix.nbytes)}"


def _grouped(matrix: QuantisedMatrix) -> str:
    """Say how many weights share a scale."""
    if matrix.block is None:
        return ""
    if matrix.shape is not None and matrix.block == matrix.shape:
        return ", one scale"
    if matrix.block[0] > 1:
        return f", blocks of {matrix.block[0]}×{matrix.block[1]}"
    rows = matrix.shape is not None and matrix.block[1] == matrix.shape[1]
    return ", one scale a row" if rows else f", groups of {matrix.block[1]}"


def related(relation: PairRelation) -> str:
    """Return the state of two matrices, the parts that differ, and the errors."""
    parts = [_STATES[relation.state]]
    if relation.reason:
        parts.append(relation.reason)
    if relation.differing:
        parts.append(f"differing parts: {listed(name.replace('_', ' ') for name in relation.differing)}")
    if relation.figures is not None and relation.state is not PairState.EQUAL_VALUES:
        parts.append(_figures(relation.figures))
    if relation.bytes_wasted:
        parts.append(f"{size(relation.bytes_wasted)} stored twice")
    return "; ".join(parts)


def _figures(figures: ErrorFigures) -> str:
    words = []
    if figures.largest is not None:
        words.append(f"largest error {figures.largest:.3g}")
    if figures.of_bound is not None:
        words.append(f"{figures.of_bound:.3g} of what rounding to nearest allows")
    if figures.rms_steps is not None:
        words.append(f"rms {figures.rms_steps:.3g} steps")
    if figures.relative_rms is not None:
        words.append(f"relative rms {figures.relative_rms:.3g}")
    return ", ".join(words)
