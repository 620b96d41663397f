"""Sort tensors into classes of equal bytes, reading each byte once.

Small samples split the tensors of one type and shape. Tensors whose samples agree are then read in lockstep.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator

from tieconv.checkpoint.files.interface import ByteReader
from tieconv.checkpoint.files.weight_file import TensorRecord
from tieconv.inspection.blocks import ANNOUNCED, BLOCK, SAMPLE, announce, announced, sample_pieces, stored_pieces
from tieconv.inspection.equality.compare_bytes import is_known_equal

_BUFFERED = 8 * 1024 * 1024
"""Bytes that one block of every member of a group in lockstep may take in total."""

_SMALL = 6 * SAMPLE
"""Bytes of the largest tensor, or rest of one, whose reads are announced: a tensor without samples is not larger."""

_OPEN_PARTS = 32
"""Different blocks kept for comparison at a time."""


def equal_classes(reader: ByteReader, tensors: Iterable[TensorRecord]) -> Iterator[list[TensorRecord]]:
    """Yield the tensors by type, shape and bytes: every class, those of one tensor included."""
    forms: dict[Hashable, list[TensorRecord]] = defaultdict(list)
    for tensor in tensors:
        forms[tensor.dtype, tensor.shape, tensor.nbytes].append(tensor)
    for form in forms.values():
        aliases: dict[Hashable, list[TensorRecord]] = defaultdict(list)
        for tensor in form:
            aliases[tensor.range].append(tensor)
        for stored in _split(reader, [names[0] for names in aliases.values()]):
            yield [name for tensor in stored for name in aliases[tensor.range]]


def _split(reader: ByteReader, tensors: list[TensorRecord]) -> Iterator[list[TensorRecord]]:
    """Yield classes of equal bytes among tensors of one size, by samples and then in lockstep."""
    groups = [tensors]
    for offset, size in sample_pieces(tensors[0].nbytes):
        groups = [part for group in groups for part in _split_by_sample(reader, group, offset, size)]
    for group in groups:
        yield from _lockstep(reader, group)


def _split_by_sample(
    reader: ByteReader, group: list[TensorRecord], offset: int, size: int
) -> Iterable[list[TensorRecord]]:
    if len(group) == 1:
        return [group]
    parts: dict[int, list[TensorRecord]] = defaultdict(list)
    samples = announced(reader, ((tensor.range, offset, size) for tensor in group))
    for tensor, sample in zip(group, samples, strict=True):
        # A hash keeps no sample in memory; after a collision the lockstep decides.
        parts[hash(bytes(sample))].append(tensor)
    return parts.values()


def _lockstep(reader: ByteReader, group: list[TensorRecord]) -> Iterator[list[TensorRecord]]:
    """Refine a partition: read all members block by block and follow each part that still agrees."""
    if len(group) == 2 and is_known_equal(reader, group[0].range, group[1].range):
        yield group
        return
    pending = [(group, 0)]
    while pending:
        members, start = pending.pop()
        if len(members) == 1 or start == members[0].nbytes:
            yield members
            continue
        parts, end = _advance(reader, members, start)
        pending += [(part, end) for part in parts]


def _advance(reader: ByteReader, members: list[TensorRecord], start: int) -> tuple[list[list[TensorRecord]], int]:
    """Read on to the first block in which the members differ; return the parts, and the offset to continue from."""
    total = members[0].nbytes
    length = max(SAMPLE, min(BLOCK, _BUFFERED // len(members)))
    buffers = [bytearray(0), bytearray(0)]
    for offset, size in stored_pieces(reader, [member.range for member in members], start, total, length):
        if len(buffers[0]) != size:
            buffers = [bytearray(size), bytearray(size)]
        parts = _parts(reader, members, offset, buffers)
        if len(parts) > _OPEN_PARTS:
            # Too many blocks to keep: split by hash, and prove those parts from this block on.
            return list(_split_by_sample(reader, members, offset, size)), offset
        if len(parts) > 1:
            return parts, offset + size
    return [members], total


def _parts(
    reader: ByteReader, members: list[TensorRecord], offset: int, buffers: list[bytearray]
) -> list[list[TensorRecord]]:
    """Split the members by their bytes at ``offset``; end at one part more than `_OPEN_PARTS`.

    ``buffers`` are two of the block's size; more are allocated only if the members differ.
    """
    seen, scratch = [buffers[0]], buffers[1]
    if len(scratch) <= _SMALL and len(members) <= ANNOUNCED:
        announce(reader, [(member.range, offset, len(scratch)) for member in members])
    reader.read_into(members[0].range, offset, memoryview(seen[0]))
    parts = [[members[0]]]
    for member in members[1:]:
        reader.read_into(member.range, offset, memoryview(scratch))
        index = next((index for index, block in enumerate(seen) if block == scratch), None)
        if index is not None:
            parts[index].append(member)
            continue
        seen.append(scratch)
        parts.append([member])
        if len(parts) > _OPEN_PARTS:
            break
        scratch = bytearray(len(scratch))
    return parts
