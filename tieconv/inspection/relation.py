"""How one stored tensor relates to another one, decided by proof over every byte.

Equality needs the standard library alone; numpy is imported once a rounding or a difference is computed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tieconv.checkpoint.dtypes import FLOATS, QUANTISED, nbytes
from tieconv.checkpoint.model_files import ByteReader, TensorRecord
from tieconv.checkpoint.relation.proved import (
    Cast,
    Compared,
    Different,
    Empty,
    Identical,
    Near,
    OtherBytes,
    OtherShape,
    RowFigures,
    Scaled,
    Transposed,
)
from tieconv.inspection.equality import common_prefix, equal
from tieconv.inspection.sharing import sharing
from tieconv.inspection.tensor_values import NanWatch
from tieconv.inspection.transposition import transposed
from tieconv.inspection.view_reader import readable

if TYPE_CHECKING:
    from tieconv.inspection.numeric.rows import Difference

NEAR_RMS = 1e-2
"""Largest rms of the difference, relative to the canonical rms, at which tensors are near."""

NEAR_ROWS = 0.5
"""Largest share of rows that may differ in tensors that are near whatever the difference."""


def relate(reader: ByteReader, canonical: TensorRecord, other: TensorRecord) -> Compared:
    """What ``other`` is to ``canonical``: identical, transposed, cast, scaled, near or distinct.

    The first state that can be proved is returned, with the figures that it carries. No number is
    computed from integers or quantised codes. Raises what the reader raises.
    """
    known = sharing(canonical, other)
    if known is not None:
        return known
    reader, (canonical, other) = readable(reader, (canonical, other))
    watch = NanWatch(reader, canonical)
    if _same_form(canonical, other) and equal(reader, canonical.range, other.range, watch):
        watch.keep()
        return Identical()
    if transposed(reader, canonical, other):
        return Transposed()
    if canonical.shape != other.shape:
        return _other_shape(reader, canonical, other)
    reason = _incomparable(canonical, other)
    if reason:
        return OtherBytes(reason)
    return _relate_values(reader, canonical, other)


def relate_cast(reader: ByteReader, one: TensorRecord, two: TensorRecord) -> Cast | None:
    """The `Cast` relation of two float tensors of one shape and two types, or ``None``.

    Raises what the reader raises.
    """
    if one.dtype == two.dtype or one.shape != two.shape or _incomparable(one, two):
        return None
    from tieconv.inspection.numeric.bits import Pair
    from tieconv.inspection.numeric.cast import cast_direction

    found = cast_direction(Pair(reader, one, two))
    if found is None:
        return None
    pair, lossless = found
    return Cast(exact=pair.left.name, narrow=pair.right.name, lossless=lossless)


def _relate_values(reader: ByteReader, canonical: TensorRecord, other: TensorRecord) -> Compared:
    from tieconv.inspection.numeric.bits import Pair
    from tieconv.inspection.numeric.rows import difference

    cast = relate_cast(reader, canonical, other)
    if cast:
        return cast
    scaled = _scaled(reader, canonical, other)
    if scaled:
        return scaled
    found = difference(Pair(reader, canonical, other))
    figures = _figures(found, same_dtype=canonical.dtype == other.dtype)
    return Near(figures) if _is_near(found) else Different(figures, found.cosine)


def _same_form(canonical: TensorRecord, other: TensorRecord) -> bool:
    return (canonical.dtype, canonical.shape) == (other.dtype, other.shape)


def _other_shape(reader: ByteReader, canonical: TensorRecord, other: TensorRecord) -> Empty | OtherShape:
    if canonical.elements and not other.elements:
        return Empty()
    if not _same_rows(canonical, other):
        return OtherShape(other.shape, canonical.shape)
    rows, canonical_rows = other.shape[0], canonical.shape[0]
    row_bytes = max(canonical.nbytes, other.nbytes) // max(rows, canonical_rows)
    prefix = common_prefix(reader, canonical.range, other.range)
    return OtherShape(other.shape, canonical.shape, prefix // row_bytes, rows - canonical_rows)


def _same_rows(canonical: TensorRecord, other: TensorRecord) -> bool:
    """Whether both are stacks of rows of the same type and of whole bytes."""
    return (
        bool(canonical.shape and other.shape)
        and canonical.dtype == other.dtype
        and canonical.shape[1:] == other.shape[1:]
        and canonical.nbytes * other.shape[0] == other.nbytes * canonical.shape[0]
        and bool(nbytes(canonical.dtype, canonical.shape[1:]))
    )


def _incomparable(canonical: TensorRecord, other: TensorRecord) -> str:
    """Why no number may be computed from tensors of one shape; empty where one may."""
    for record in (canonical, other):
        if record.dtype in QUANTISED:
            return f"{record.dtype} values may be quantised codes, so only their bytes are compared"
        if record.dtype not in FLOATS:
            return f"{record.dtype} values are compared by their bytes only"
        if record.nbytes != nbytes(record.dtype, record.shape):
            return f"the bytes of {record.name} do not match its shape"
        if not record.elements:
            return "the tensors are empty and of different types"
    return ""


def _scaled(reader: ByteReader, canonical: TensorRecord, other: TensorRecord) -> Scaled | None:
    from tieconv.inspection.numeric.bits import Pair
    from tieconv.inspection.numeric.scale import scaling

    found = scaling(Pair(reader, canonical, other))
    if found is None:
        return None
    forward = found.pair.left is canonical
    return Scaled(
        factor=found.factor if forward else 1 / found.factor,
        # Only then does the canonical tensor alone give the other one back.
        exact=found.exact and forward,
        power_of_two=found.power_of_two,
        max_ulp=found.max_ulp,
        rounded=found.pair.right.name,
    )


def _figures(found: Difference, *, same_dtype: bool) -> RowFigures:
    unordered = bool(found.nan.count)
    return RowFigures(
        rows_differing=found.differing.count,
        rows=found.rows,
        row_ranges=tuple((first, end) for first, end in found.differing.ranges),
        rows_listed_completely=found.differing.complete,
        max_ulp=found.max_ulp if same_dtype and not unordered else None,
        max_abs=None if found.unbounded else found.max_abs,
        relative_rms=found.relative_rms,
        sign_of_zero_only=found.sign_of_zero_only,
        nan_rows=found.nan.count,
    )


def _is_near(found: Difference) -> bool:
    """Few rows or a small rms; where only the sign of zero differs, the rms is 0."""
    rms = found.relative_rms
    return found.differing.count <= NEAR_ROWS * found.rows or (rms is not None and rms <= NEAR_RMS)
