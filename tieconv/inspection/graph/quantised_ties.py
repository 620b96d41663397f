"""Compare an embedding and a head that are quantised in blocks: tied if all their stored parts are equal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tieconv.checkpoint.files.graph_structure import GraphRecord, QuantisedRead
from tieconv.checkpoint.files.interface import ByteReader
from tieconv.checkpoint.files.weight_file import TensorRecord
from tieconv.checkpoint.inspection import Depth
from tieconv.checkpoint.relation.interface import Aliased
from tieconv.checkpoint.relation.proved import Identical, Unread
from tieconv.inspection.blocks import is_sampled
from tieconv.inspection.equality.compare_bytes import equal

_BLOCKS = {"embedding": ("GatherBlockQuantized", "Gather"), "head": ("MatMulNBits",)}


def quantised_pair(graph: GraphRecord) -> tuple[QuantisedRead, QuantisedRead] | None:
    """Return the embedding and the head if both are quantised in blocks, and the head is of a MatMulNBits."""
    by_role = {read.role: read for read in graph.quantised if read.parts and read.operator in _BLOCKS[read.role]}
    if len(by_role) < len(_BLOCKS):
        return None
    embedding, head = by_role["embedding"], by_role["head"]
    return None if embedding.name == head.name and not _same(embedding, head) else (embedding, head)


def _same(left: QuantisedRead, right: QuantisedRead) -> bool:
    return (left.parts, left.bits, left.block) == (right.parts, right.bits, right.block)


def relate_quantised(
    left: QuantisedRead, right: QuantisedRead, tensors: Mapping[str, TensorRecord], reader: ByteReader, depth: Depth
) -> Aliased | Identical | Unread | None:
    """Return how the head relates to the embedding; ``None`` if they read the same initializers.

    Two different quantisations do not show how the original matrices relate, so they are not compared.
    """
    if _same(left, right):
        return None
    if (left.bits, left.block, len(left.parts)) != (right.bits, right.block, len(right.parts)):
        return Unread(reason="they are quantised differently")
    pairs = [(tensors[a], tensors[b]) for a, b in zip(left.parts, right.parts, strict=True)]
    if all(a.range == b.range for a, b in pairs):
        return Aliased()
    if depth is Depth.HEADER or is_sampled(reader):
        return Unread(reason="their bytes were not read")
    if all(a.dtype == b.dtype and equal(reader, a.range, b.range) for a, b in pairs):
        return Identical()
    return Unread(reason="both are quantised, and their codes, scales or zero points differ")


def wasted(
    relation: Aliased | Identical | Unread | None,
    left: QuantisedRead,
    right: QuantisedRead,
    tensors: Mapping[str, TensorRecord],
) -> int:
    """Return the bytes of equal scales and zero points that are stored twice."""
    if not isinstance(relation, Identical):
        return 0
    return sum(_twice(left, right, tensors))


def _twice(left: QuantisedRead, right: QuantisedRead, tensors: Mapping[str, TensorRecord]) -> Iterator[int]:
    for a, b in zip(left.parts[1:], right.parts[1:], strict=True):
        if tensors[a].range != tensors[b].range:
            yield tensors[b].nbytes
