"""Multiply floats by a power of two, exactly or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tieconv.errors import RefusedError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_FRACTION_BITS = {"F16": 10, "BF16": 7, "F32": 23, "F64": 52}
_WIDTH = {"F16": 2, "BF16": 2, "F32": 4, "F64": 8}
_LARGEST_EXPONENT = 4096
"""Larger than the exponent range of each of these types: beyond it only zeros could be exact."""


class _InexactError(Exception):
    """An element whose product the type cannot represent."""


def scalable(dtype: str) -> bool:
    """Return whether elements of ``dtype`` can be multiplied."""
    return dtype in _FRACTION_BITS


def scaled(block: bytes | bytearray | memoryview, dtype: str, exponent: int) -> bytes:
    """Return every element of ``block`` times 2**``exponent``; zeros, infinities and NaNs stay as they are.

    Raises `RefusedError` if an element overflows or needs rounding.
    """
    if not scalable(dtype):
        raise RefusedError(f"tieconv cannot scale tensors of dtype {dtype}", "", "scale.dtype")
    if exponent == 0:
        return bytes(block)
    try:
        return _scaled(block, dtype, max(-_LARGEST_EXPONENT, min(exponent, _LARGEST_EXPONENT)))
    except _InexactError:
        raise RefusedError(
            f"tieconv cannot scale this {dtype} tensor by 2**{exponent} exactly", "", "scale.inexact"
        ) from None


def _scaled(block: bytes | bytearray | memoryview, dtype: str, exponent: int) -> bytes:
    import numpy as np

    width, fraction = _WIDTH[dtype], _FRACTION_BITS[dtype]
    bits = np.frombuffer(block, dtype=f"<u{width}").copy()
    full = (1 << (8 * width - 1 - fraction)) - 1  # the exponent field of infinities and NaNs
    field = ((bits >> fraction) & full).astype(np.int16)
    zero = (bits << 1) == 0
    plain = (field > 0) & (field + exponent > 0) & (field + exponent < full) & (field < full)
    rest = ~(plain | zero | (field == full))
    # Two's complement: the mask prevents a negative step from borrowing from the next element.
    step = np.array((exponent << fraction) & ((1 << 8 * width) - 1), dtype=bits.dtype)
    slow = bits[rest]
    bits[plain] += step
    if slow.size:
        bits[rest] = _scaled_slowly(slow, 8 * width, fraction, exponent)
    return bits.tobytes()


def _scaled_slowly(bits: NDArray[Any], width: int, fraction: int, exponent: int) -> NDArray[Any]:
    """Scale elements that overflow, or are subnormal before or after."""
    import numpy as np

    full = (1 << (width - 1 - fraction)) - 1
    sign = bits & np.array(1 << (width - 1), bits.dtype)
    field = ((bits >> fraction) & full).astype(np.int64)
    significand = (bits & ((1 << fraction) - 1)).astype(np.int64) | np.where(field > 0, 1 << fraction, 0)
    power = np.maximum(field, 1) + exponent
    for _ in range(fraction):  # as close to normal as the exponent allows
        small = (significand < 1 << fraction) & (power > 1)
        if not small.any():
            break
        significand, power = np.where(small, significand << 1, significand), np.where(small, power - 1, power)
    lost = np.clip(1 - power, 0, fraction + 1)
    if ((significand & ((1 << lost) - 1)) != 0).any():
        raise _InexactError
    significand, power = significand >> lost, np.maximum(power, 1)
    if (power >= full).any():
        raise _InexactError
    field = np.where(significand >= 1 << fraction, power, 0)
    magnitude: NDArray[np.int64] = (field << fraction) | (significand & ((1 << fraction) - 1))
    image: NDArray[Any] = magnitude.astype(bits.dtype) | sign
    return image
