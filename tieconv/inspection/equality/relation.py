"""Find how one stored tensor relates to another, by proof over every byte.

Equality needs only the standard library; numpy is imported when a rounding or a difference is computed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tieconv.checkpoint.files.dtypes import FLOATS, QUANTISED, nbytes
from tieconv.checkpoint.files.interface import ByteReader
from tieconv.checkpoint.files.weight_file import TensorRecord
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
from tieconv.inspection.equality.compare_bytes import common_prefix, equal
from tieconv.inspection.equality.transposition import transposed
from tieconv.inspection.sharing import sharing
from tieconv.inspection.tensor_values import NanWatch
from tieconv.inspection.view_reader import readable

if TYPE_CHECKING:
    from tieconv.inspection.numeric.rows import Difference

NEAR_RMS = 1e-2
"""Largest rms of the difference, relative to the canonical rms, for tensors to count as near."""

NEAR_ROWS = 0.5
"""Largest share of differing rows for tensors to count as near, however large the difference."""


def relate(reader: ByteReader, canonical: TensorRecord, compared: TensorRecord) -> Compared:
    """Return how ``compared`` relates to ``canonical``: identical, transposed, cast, scaled, near or distinct.

    Returns the first state that can be proved, with its figures. Integers and quantised codes are only compared as
    bytes. Raises what the reader raises.
    """
    known = sharing(canonical, compared)
    if known is not None:
        return known
    reader, (canonical, compared) = readable(reader, (canonical, compared))
    watch = NanWatch(reader, canonical)
    if _same_form(canonical, compared) and equal(reader, canonical.range, compared.range, watch):
        watch.keep()
        return Identical()
    if transposed(reader, canonical, compared):
        return Transposed()
    if canonical.shape != compared.shape:
        return _other_shape(reader, canonical, compared)
    reason = _incomparable(canonical, compared)
    if reason:
        return OtherBytes(reason)
    return _relate_values(reader, canonical, compared)


def relate_cast(reader: ByteReader, left: TensorRecord, right: TensorRecord) -> Cast | None:
    """Return the `Cast` relation of two float tensors of one shape and two types, or ``None``.

    Raises what the reader raises.
    """
    if left.dtype == right.dtype or left.shape != right.shape or _incomparable(left, right):
        return None
    from tieconv.inspection.numeric.bits import Pair
    from tieconv.inspection.numeric.cast import cast_direction

    direction = cast_direction(Pair(reader, left, right))
    if direction is None:
        return None
    pair, lossless = direction
    return Cast(exact=pair.left.name, narrow=pair.right.name, lossless=lossless)


def _relate_values(reader: ByteReader, canonical: TensorRecord, compared: TensorRecord) -> Compared:
    from tieconv.inspection.numeric.bits import Pair
    from tieconv.inspection.numeric.rows import difference

    cast = relate_cast(reader, canonical, compared)
    if cast:
        return cast
    scaled = _scaled(reader, canonical, compared)
    if scaled:
        return scaled
    differences = difference(Pair(reader, canonical, compared))
    figures = _figures(differences, same_dtype=canonical.dtype == compared.dtype)
    return Near(figures) if _is_near(differences) else Different(figures, differences.cosine)


def _same_form(canonical: TensorRecord, compared: TensorRecord) -> bool:
    return (canonical.dtype, canonical.shape) == (compared.dtype, compared.shape)


def _other_shape(reader: ByteReader, canonical: TensorRecord, compared: TensorRecord) -> Empty | OtherShape:
    if canonical.elements and not compared.elements:
        return Empty()
    if not _same_rows(canonical, compared):
        return OtherShape(compared.shape, canonical.shape)
    rows, canonical_rows = compared.shape[0], canonical.shape[0]
    row_bytes = max(canonical.nbytes, compared.nbytes) // max(rows, canonical_rows)
    prefix = common_prefix(reader, canonical.range, compared.range)
    return OtherShape(compared.shape, canonical.shape, prefix // row_bytes, rows - canonical_rows)


def _same_rows(canonical: TensorRecord, compared: TensorRecord) -> bool:
    """Return whether both are stacks of rows of the same type and of whole bytes."""
    return (
        bool(canonical.shape and compared.shape)
        and canonical.dtype == compared.dtype
        and canonical.shape[1:] == compared.shape[1:]
        and canonical.nbytes * compared.shape[0] == compared.nbytes * canonical.shape[0]
        and bool(nbytes(canonical.dtype, canonical.shape[1:]))
    )


def _incomparable(canonical: TensorRecord, compared: TensorRecord) -> str:
    """Return why tensors of one shape cannot be compared as numbers; empty if they can."""
    for record in (canonical, compared):
        if record.dtype in QUANTISED:
            return f"{record.dtype} values may be quantised codes, so tieconv compares only their bytes"
        if record.dtype not in FLOATS:
            return f"tieconv compares {record.dtype} values only as bytes"
        if record.nbytes != nbytes(record.dtype, record.shape):
            return f"the bytes of {record.name} do not match its shape"
        if not record.elements:
            return "the tensors are empty and of different types"
    return ""


def _scaled(reader: ByteReader, canonical: TensorRecord, compared: TensorRecord) -> Scaled | None:
    from tieconv.inspection.numeric.bits import Pair
    from tieconv.inspection.numeric.scale import scaling

    scale = scaling(Pair(reader, canonical, compared))
    if scale is None:
        return None
    forward = scale.pair.left is canonical
    return Scaled(
        factor=scale.factor if forward else 1 / scale.factor,
        # Only then does the canonical tensor alone restore the other one.
        exact=scale.exact and forward,
        power_of_two=scale.power_of_two,
        max_ulp=scale.max_ulp,
        rounded=scale.pair.right.name,
    )


def _figures(differences: Difference, *, same_dtype: bool) -> RowFigures:
    unordered = bool(differences.nan.count)
    return RowFigures(
        rows_differing=differences.differing.count,
        rows=differences.rows,
        row_ranges=tuple((first, end) for first, end in differences.differing.ranges),
        rows_listed_completely=differences.differing.complete,
        max_ulp=differences.max_ulp if same_dtype and not unordered else None,
        max_abs=None if differences.unbounded else differences.max_abs,
        relative_rms=differences.relative_rms,
        sign_of_zero_only=differences.sign_of_zero_only,
        nan_rows=differences.nan.count,
    )


def _is_near(differences: Difference) -> bool:
    """Return whether few rows differ or the rms is small. If only the sign of zero differs, the rms is 0."""
    rms = differences.relative_rms
    return differences.differing.count <= NEAR_ROWS * differences.rows or (rms is not None and rms <= NEAR_RMS)
