"""Data types of the safetensors specification: names and widths, never arithmetic."""

from __future__ import annotations

from math import prod

BITS: dict[str, int] = {
    "BOOL": 8,
    "U8": 8,
    "I8": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "F8_E4M3": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2": 8,
    "F8_E5M2FNUZ": 8,
    "F8_E8M0": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "I64": 64,
    "U64": 64,
    "F64": 64,
    "C64": 64,
}
"""Bits per element. tieconv copies a type that is absent here as bytes and never interprets it."""

FLOATS = frozenset({"F16", "BF16", "F32", "F64"})
"""Floating types that tieconv computes with."""

QUANTISED = frozenset({"U8", "I8", "F4", "F6_E2M3", "F6_E3M2", "F8_E4M3", "F8_E4M3FNUZ", "F8_E5M2", "F8_E5M2FNUZ"})
"""Types of the codes of a quantised matrix, meaningful only with their scales."""


def nbytes(dtype: str, shape: tuple[int, ...]) -> int | None:
    """Return the bytes of a dense tensor; ``None`` for an unknown dtype or a fraction of a byte."""
    bits = BITS.get(dtype)
    if bits is None:
        return None
    whole, rest = divmod(prod(shape) * bits, 8)
    return None if rest else whole
