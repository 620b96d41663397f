"""Find equal rows by their digests: rows under another number, and rows that occur twice."""

from __future__ import annotations

from collections import Counter
from hashlib import blake2b

import numpy as np

from tieconv.analysis.model.tables import Array, Table, spans

_DIGEST = 16
"""Bytes of a row's digest, enough that different rows do not share one by search or by chance."""


def digests(table: Table) -> Array:
    """Return a digest of each row's bytes: (V,) of 16-byte strings."""
    row_digests = np.empty(table.rows, f"V{_DIGEST}")
    for start, stop in spans(table.rows, table.width):
        block = table.bits(start, stop)
        for row in range(stop - start):
            row_digests[start + row] = np.void(blake2b(block[row].data, digest_size=_DIGEST).digest())
    return row_digests


def overlap(left: Array, right: Array) -> int:
    """Count the digests of ``left`` with an equal one in ``right``; each of ``right`` matches once."""
    first, second = Counter(map(bytes, left)), Counter(map(bytes, right))
    return sum((first & second).values())


def duplicates(row_digests: Array) -> list[list[int]]:
    """Return the groups of two or more rows with one digest, in order of their first row."""
    groups: dict[bytes, list[int]] = {}
    for row, digest in enumerate(row_digests):
        groups.setdefault(digest.tobytes(), []).append(row)
    return [group for group in groups.values() if len(group) > 1]
