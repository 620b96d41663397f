"""Prove from a few bytes that two tensors differ; never that they are equal."""

from __future__ import annotations

from tieconv.checkpoint.files.interface import ByteReader
from tieconv.checkpoint.files.weight_file import TensorRecord
from tieconv.checkpoint.relation.proved import Empty, Identical, OtherSample, OtherShape, Unread
from tieconv.inspection.blocks import SAMPLE, announced
from tieconv.inspection.equality.compare_bytes import same_file_range

HINT = "tieconv inspect --depth full compares every byte"


def relate_sampled(
    reader: ByteReader, canonical: TensorRecord, compared: TensorRecord
) -> Identical | Empty | OtherShape | OtherSample | Unread:
    """Return `distinct` with the range that proves it, `identical` if file hashes prove that, else `unread`.

    It takes one sample at the middle of each tensor, because padding and untrained rows are at the ends. It takes no
    sample of tensors that may be transposed or cast. Raises what the reader raises.
    """
    if (canonical.dtype, canonical.shape) != (compared.dtype, compared.shape):
        return _other_form(canonical, compared)
    if same_file_range(reader, canonical.range, compared.range):
        return Identical(by="file hash")
    if canonical.stride is not None or compared.stride is not None or not canonical.nbytes:
        return Unread(reason=f"samples cannot prove a relation here: {HINT}")
    size = min(SAMPLE, canonical.nbytes)
    offset = (canonical.nbytes - size) // 2 // SAMPLE * SAMPLE
    left, right = announced(reader, [(record.range, offset, size) for record in (canonical, compared)])
    ranges = ((offset, offset + size),)
    if left != right:
        return OtherSample(ranges)
    return Unread(sampled=True, ranges_equal=ranges, reason=f"the sampled bytes are equal: {HINT}")


def _other_form(canonical: TensorRecord, compared: TensorRecord) -> Empty | OtherShape | Unread:
    if canonical.elements and not compared.elements:
        return Empty()
    if canonical.shape == compared.shape:
        return Unread(reason=f"the types differ: {HINT}")
    if canonical.shape == compared.shape[::-1]:
        return Unread(reason=f"one may be the other transposed: {HINT}")
    return OtherShape(compared.shape, canonical.shape)
