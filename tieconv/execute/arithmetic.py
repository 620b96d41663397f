"""Compute the values of written tensors: the mean of two tensors, rounded once, and exact multiples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tieconv.checkpoint.weight_file import FLOATS
from tieconv.checkpoint.write_plan import Averaged
from tieconv.errors import RefusedError
from tieconv.execute.copy import read_blocks
from tieconv.text import Hint, option, shown

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tieconv.inspection.numeric.bits import Format


BLOCK = 256 * 1024
"""Bytes of each tensor in one step: a multiple of every element's width."""

Bytes = bytes | bytearray | memoryview


def averaged_blocks(sources: tuple[int, int], content: Averaged) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, bytes) of the mean, block by block, read from two open files.

    Raises `RefusedError` if an element is not finite: infinities and NaNs have no mean.
    """
    import numpy as np

    spans = zip(sources, (content.range, content.second), strict=True)
    for (done, first), (_, second) in zip(
        *(read_blocks(source, span.start, span.size, BLOCK) for source, span in spans), strict=True
    ):
        values = [floats(block, content.dtype) for block in (first, second)]
        for numbers, name in zip(values, content.names, strict=True):
            if not np.isfinite(numbers).all():
                problem = f"{shown(name)} holds infinities or NaNs, so tieconv cannot average it"
                hint = Hint("use the values of one tensor: ", option(survivor="embed"), " or ", option(survivor="head"))
                raise RefusedError(problem, hint, "mean.not-finite")
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

    from tieconv.inspection.numeric.bits import FORMATS, decode

    return decode(np.frombuffer(block, FORMATS[dtype].bits), FORMATS[dtype]).astype("<f8")


def rounded(values: NDArray[Any], dtype: str) -> bytes:
    """Return finite float64 values as elements of ``dtype``, rounded once to nearest, ties to even."""
    from tieconv.inspection.numeric.bits import FORMATS, encode

    return bytes(encode(values, FORMATS[dtype]).tobytes())


# Multiply floats by a power of two, exactly or not at all.


_LARGEST_EXPONENT = 4096
"""Larger than the exponent range of each of these types: beyond it only zeros could be exact."""


def scaled(block: Bytes, dtype: str, exponent: int) -> bytes:
    """Return every element of ``block`` times 2**``exponent``; zeros, infinities and NaNs stay as they are.

    Raises `RefusedError` if an element overflows or needs rounding.
    """
    if dtype not in FLOATS:
        raise RefusedError(f"tieconv cannot scale tensors of dtype {dtype}", "", "scale.dtype")
    if exponent == 0:
        return bytes(block)
    import numpy as np

    from tieconv.inspection.numeric.bits import FORMATS

    form, exponent = FORMATS[dtype], max(-_LARGEST_EXPONENT, min(exponent, _LARGEST_EXPONENT))
    bits = np.frombuffer(block, form.bits).copy()
    full = form.infinity >> form.mantissa  # the exponent field of infinities and NaNs
    field = ((bits >> form.mantissa) & full).astype(np.int16)
    zero = (bits << 1) == 0
    plain = (field > 0) & (field + exponent > 0) & (field + exponent < full) & (field < full)
    rest = ~(plain | zero | (field == full))
    # Two's complement: the mask prevents a negative step from borrowing from the next element.
    bits[plain] += np.array((exponent << form.mantissa) & ((1 << 8 * form.width) - 1), dtype=bits.dtype)
    if rest.any():
        made = _scaled_subnormals(bits[rest], form, exponent)
        if made is None:
            why = f"a {dtype} value of the head times 2**{exponent} cannot be stored exactly"
            raise RefusedError(why, "", "scale.inexact")
        bits[rest] = made
    return bits.tobytes()


def _scaled_subnormals(bits: NDArray[Any], form: Format, exponent: int) -> NDArray[Any] | None:
    """Scale elements that overflow, or are subnormal before or after. Return ``None`` if one product is inexact."""
    import numpy as np

    from tieconv.inspection.numeric.bits import decode, encode

    values = decode(bits, form).astype("<f8")
    with np.errstate(all="ignore"):
        made = encode(np.ldexp(values, exponent), form)
        back = np.ldexp(decode(made, form).astype("<f8"), -exponent)
    return None if (back != values).any() else made
