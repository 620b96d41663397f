"""Find equal rows by their digests: rows under another number, and rows that occur twice."""

from __future__ import annotations

from collections import Counter
from hashlib import blake2b

import numpy as np

from tieconv.analysis.model.tables import Array, Table, spans

_DIGEST = 16
"""Bytes of a row's digest, enough that different rows do not share one by search or by chance."""


def digests(table: Table, rows: Array | None = None) -> Array:
    """Return a digest of each row's bytes, or of the ascending ``rows``: (V,) of 16-byte strings."""
    count = table.rows if rows is None else len(rows)
    row_digests = np.empty(count, f"V{_DIGEST}")
    for start, stop in spans(count, table.width):
        block = table.bits(start, stop) if rows is None else table.pick_bits(rows[start:stop])
        for row in range(stop - start):
            row_digests[start + row] = np.void(blake2b(block[row].data, digest_size=_DIGEST).digest())
    return row_digests


def twins(norms: Array, width: int) -> Array:
    """Return the rows (ascending) that may be equal to another row, by their lengths (V,) of any float64 summation.

    Sums of the same ``width`` squares differ by at most `_same` of their size, whatever their order. So a row without
    another of nearly its length has no equal. NaN may equal NaN; rows of zeros are left out.
    """
    order = np.argsort(norms, kind="stable")
    close = norms[order][1:] - norms[order][:-1] <= _same(width) * norms[order][1:]
    pairs = np.concatenate([[False], close]) | np.concatenate([close, [False]])
    return np.sort(order[(pairs & (norms[order] > 0)) | np.isnan(norms[order])])


def most_overlap(left: Array, right: Array, width: int) -> int:
    """Return an upper bound of `overlap`, from the lengths of the rows: how many of ``left`` have one in ``right``."""
    numbers = np.sort(right[~np.isnan(right)])
    slack = _same(width) * left
    inside = np.searchsorted(numbers, left + slack, "right") > np.searchsorted(numbers, left - slack, "left")
    return int(np.count_nonzero(inside | np.isnan(left)))


def _same(width: int) -> float:
    """Return the largest relative difference of two float64 sums of the same ``width`` squares."""
    return (width + 8) * 2.0**-51


def overlap(left: Array, right: Array) -> int:
    """Count the digests of ``left`` with an equal one in ``right``; each of ``right`` matches once."""
    first, second = Counter(map(bytes, left)), Counter(map(bytes, right))
    return sum((first & second).values())


def duplicates(row_digests: Array, rows: Array | None = None) -> list[list[int]]:
    """Return the groups of two or more rows with one digest, in order of their first row.

    ``rows`` are the numbers of the digests, by default 0, 1, …
    """
    groups: dict[bytes, list[int]] = {}
    for row, digest in zip(range(len(row_digests)) if rows is None else map(int, rows), row_digests, strict=True):
        groups.setdefault(digest.tobytes(), []).append(row)
    return [group for group in groups.values() if len(group) > 1]
