"""Compute the mean of two stored tensors, element by element, in float64 and rounded once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tieconv.checkpoint.write_plan.output import Averaged
from tieconv.errors import RefusedError
from tieconv.execute.contents.copy import read_full
from tieconv.text import shown

if TYPE_CHECKING:
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
        yield done, _averaged(blocks, content)


def _averaged(blocks: list[memoryview], content: Averaged) -> bytes:
    values = [floats(block, content.dtype) for block in blocks]
    for numbers, name in zip(values, content.names, strict=True):
        if not _all_finite(numbers):
            raise RefusedError(
                f"{shown(name)} holds infinities or NaNs, so tieconv cannot average it",
                "use the values of one tensor: --from embed or --from head",
                "mean.not-finite",
            )
    return rounded(midpoints(*values), content.dtype)


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
