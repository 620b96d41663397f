"""Compute the mean of two stored tensors, element by element, in float64 and rounded once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tieconv.checkpoint.write_plan import Averaged
from tieconv.errors import RefusedError
from tieconv.execute.copy import read_full
from tieconv.text import Hint, option, shown

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


BLOCK = 256 * 1024
"""Bytes of each tensor in one step: a multiple of every element's width."""

_FRACTION_BITS = {"F16": 10, "BF16": 7, "F32": 23, "F64": 52}
_LEAST = {"F16": -24, "BF16": -133, "F32": -149, "F64": -1074}
"""The exponent of the smallest subnormal number."""

Bytes = bytes | bytearray | memoryview


def averaged_blocks(sources: tuple[int, int], content: Averaged) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, bytes) of the mean, block by block, read from two open files.

    Raises `RefusedError` if an element is not finite: infinities and NaNs have no mean.
    """
    for done in range(0, content.size, BLOCK):
        blocks = [memoryview(bytearray(min(BLOCK, content.size - done))) for _ in sources]
        for source, block, span in zip(sources, blocks, (content.range, content.second), strict=True):
            read_full(source, block, span.start + done)
        values = [floats(block, content.dtype) for block in blocks]
        for numbers, name in zip(values, content.names, strict=True):
            if not _all_finite(numbers):
                raise RefusedError(
                    f"{shown(name)} holds infinities or NaNs, so tieconv cannot average it",
                    Hint("use the values of one tensor: ", option(survivor="embed"), " or ", option(survivor="head")),
                    "mean.not-finite",
                )
        yield done, rounded(midpoints(*values), content.dtype)


def midpoints(first: NDArray[Any], second: NDArray[Any]) -> NDArray[Any]:
    """Return (a + b) / 2 of finite float64 arrays. If the sum overflows, a / 2 + b / 2 is as exact."""
    import numpy as np

    with np.errstate(over="ignore"):
        total = first + second
        return np.where(np.isfinite(total), total / 2, first / 2 + second / 2)


def floats(block: Bytes, dtype: str) -> NDArray[Any]:
    """Return stored elements as float64, exactly."""
    import numpy as np

    if dtype == "BF16":
        wide = np.frombuffer(block, "<u2").astype("<u4") << 16
        return wide.view("<f4").astype("f8")
    return np.frombuffer(block, {"F16": "<f2", "F32": "<f4", "F64": "<f8"}[dtype]).astype("f8")


def rounded(values: NDArray[Any], dtype: str) -> bytes:
    """Return finite float64 values as elements of ``dtype``, rounded once to nearest, ties to even."""
    import numpy as np

    on_grid = values if dtype == "F64" else _on_grid(values, dtype)
    with np.errstate(over="ignore"):  # a value may round up to infinity
        if dtype == "BF16":
            return bytes((on_grid.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes())
        return bytes(on_grid.astype({"F16": "<f2", "F32": "<f4", "F64": "<f8"}[dtype]).tobytes())


def _on_grid(values: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Return values whose last bit ``dtype`` can represent."""
    import numpy as np

    _, exponents = np.frexp(values)
    exponent = np.maximum(exponents - 1 - _FRACTION_BITS[dtype], _LEAST[dtype])
    rounded_values: NDArray[Any] = np.copysign(np.ldexp(np.rint(np.ldexp(values, -exponent)), exponent), values)
    return rounded_values


def _all_finite(values: NDArray[Any]) -> bool:
    import numpy as np

    return bool(np.isfinite(values).all())


# Multiply floats by a power of two, exactly or not at all.


_WIDTH = {"F16": 2, "BF16": 2, "F32": 4, "F64": 8}
_LARGEST_EXPONENT = 4096
"""Larger than the exponent range of each of these types: beyond it only zeros could be exact."""


class _InexactError(Exception):
    """An element whose product the type cannot represent."""


def scaled(block: bytes | bytearray | memoryview, dtype: str, exponent: int) -> bytes:
    """Return every element of ``block`` times 2**``exponent``; zeros, infinities and NaNs stay as they are.

    Raises `RefusedError` if an element overflows or needs rounding.
    """
    if dtype not in _FRACTION_BITS:
        raise RefusedError(f"tieconv cannot scale tensors of dtype {dtype}", "", "scale.dtype")
    if exponent == 0:
        return bytes(block)
    try:
        return _scaled(block, dtype, max(-_LARGEST_EXPONENT, min(exponent, _LARGEST_EXPONENT)))
    except _InexactError:
        raise RefusedError(
            f"a {dtype} value of the head times 2**{exponent} cannot be stored exactly", "", "scale.inexact"
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
