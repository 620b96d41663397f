"""Unpack codes of 1 to 8 bits from rows of bytes. Imports numpy: import it lazily."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def unpack_words(raw: Array, bits: int, count: int, *, gaps: bool = False) -> Array:
    """Return ``count`` codes of each row of little-endian 32-bit words, the lowest bits first, as int64.

    ``raw`` is [rows, bytes]. With ``gaps`` no code crosses a word; else the codes fill all bits.
    """
    packed = np.ascontiguousarray(raw).view("<u4").astype(np.uint64)
    index = np.arange(count)
    if gaps:
        per_word = 32 // bits
        word, shift = index // per_word, index % per_word * bits
        joined = packed[:, word]
    else:
        word, shift = index * bits // 32, index * bits % 32
        following = np.minimum(word + 1, packed.shape[1] - 1)
        joined = packed[:, word] | packed[:, following] << np.uint64(32)
    return (joined >> shift.astype(np.uint64) & np.uint64((1 << bits) - 1)).astype(np.int64)


def nibbles(raw: Array, *, high_first: bool = False) -> Array:
    """Return two codes of 4 bits for each byte along the last axis."""
    low, high = raw & 0xF, raw >> 4
    pair = (high, low) if high_first else (low, high)
    return np.stack(pair, axis=-1).reshape(*raw.shape[:-1], -1)
