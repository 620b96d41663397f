"""Rows joined by what they hold: equal rows at other places, and rows that occur twice."""

from __future__ import annotations

from hashlib import blake2b

import numpy as np

from tieconv.analysis.tables import Array, Table, spans

_DIGEST = 16
"""Bytes of a row's digest: two different rows with the same one are not to be found by search or by chance."""


def digests(table: Table) -> Array:
    """A digest of each row's bytes: (V,) of 16-byte strings."""
    found = np.empty(table.rows, f"V{_DIGEST}")
    for start, stop in spans(table.rows, table.width):
        block = table.bits(start, stop)
        for place in range(stop - start):
            found[start + place] = np.void(blake2b(block[place].data, digest_size=_DIGEST).digest())
    return found


def places(wanted: Array, among: Array) -> Array:
    """For each digest of ``wanted`` the first place in ``among`` with the same, or −1."""
    known: dict[bytes, int] = {}
    for place, digest in enumerate(among):
        known.setdefault(digest.tobytes(), place)
    return np.array([known.get(digest.tobytes(), -1) for digest in wanted], "i8")


def duplicates(found: Array) -> list[list[int]]:
    """The groups of two or more places with one digest, in order of their first place."""
    groups: dict[bytes, list[int]] = {}
    for place, digest in enumerate(found):
        groups.setdefault(digest.tobytes(), []).append(place)
    return [group for group in groups.values() if len(group) > 1]
