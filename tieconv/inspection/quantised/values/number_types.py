"""Convert stored numbers to float64, exactly. Imports numpy: import it lazily."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

INTEGERS = {
    "I8": "<i1",
    "U8": "<u1",
    "I16": "<i2",
    "U16": "<u2",
    "I32": "<i4",
    "U32": "<u4",
    "I64": "<i8",
    "U64": "<u8",
}
_FLOATS = {"F16": "<f2", "F32": "<f4", "F64": "<f8"}
ROUNDOFF = {"F16": 2.0**-11, "BF16": 2.0**-8, "F32": 2.0**-24, "F64": 2.0**-53, "F8_E4M3": 2.0**-4}
"""The largest relative error of a rounding to the type; 0 for a type that is not here."""


def _float8(exponent_bits: int, bias: int, finite: int) -> Array:
    """Return the value of each byte of an 8-bit float; NaN above the magnitude ``finite``."""
    codes = np.arange(256)
    mantissa_bits = 7 - exponent_bits
    magnitude = codes & 0x7F
    exponent, mantissa = magnitude >> mantissa_bits, magnitude & ((1 << mantissa_bits) - 1)
    fraction = mantissa / (1 << mantissa_bits) + (exponent > 0)
    values = np.ldexp(fraction, np.maximum(exponent, 1) - bias)
    values[magnitude > finite] = np.nan
    signed: Array = np.where(codes & 0x80, -values, values)
    return signed


E4M3 = _float8(4, 7, 0x7E)
"""The value of each byte of F8_E4M3."""
E5M2 = _float8(5, 15, 0x7B)
"""The value of each byte of F8_E5M2; NaN also for the infinities, which no code of a matrix is."""
E2M1 = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0])
"""The value of each 4-bit float."""
POWERS = np.append(np.exp2(np.arange(255) - 127.0), np.nan)
"""The value of each byte of an E8M0 scale: a power of two."""
TABLES = {"F8_E4M3": E4M3, "F8_E5M2": E5M2, "F8_E8M0": POWERS}


def readable_type(dtype: str) -> bool:
    """Return whether `to_float64` reads the type."""
    return dtype in INTEGERS or dtype in _FLOATS or dtype in TABLES or dtype == "BF16"


def to_float64(raw: bytearray, dtype: str) -> Array:
    """Return the numbers of a flat buffer as float64. Raises `KeyError` for an unknown type."""
    if dtype in TABLES:
        return np.asarray(TABLES[dtype][np.frombuffer(raw, "u1")])
    if dtype == "BF16":
        return (np.frombuffer(raw, "<u2").astype("<u4") << 16).view("<f4").astype(np.float64)
    return np.frombuffer(raw, {**INTEGERS, **_FLOATS}[dtype]).astype(np.float64)


def half_gaps(table: Array, edge: float | None = None) -> Array:
    """Return for each code the largest distance of a value that rounds to it.

    That is half the larger gap to a neighbour, and ``edge`` for the codes of the largest magnitude.
    """
    levels = np.unique(np.abs(table[np.isfinite(table)])) if table.min() < 0 else np.unique(table)
    both = np.unique(table[np.isfinite(table)])
    gaps = np.diff(both)
    reach = np.maximum(np.append(gaps, 0.0), np.insert(gaps, 0, 0.0)) / 2
    if edge is not None:
        reach[np.abs(both) == levels[-1]] = edge
    result = np.full(table.shape, np.nan)
    known = np.isfinite(table)
    result[known] = reach[np.searchsorted(both, table[known])]
    return result
