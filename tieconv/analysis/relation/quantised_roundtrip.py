"""Find out whether the head is the embedding after a quantisation round trip, which is not drift.

A scheme has a table of levels, which the scale of a group multiplies. It maps each number to the nearest level. So
every number of the head is one of the two levels around the embedding's number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from tieconv.analysis.model.tables import Array, Table, spans
from tieconv.checkpoint.value_type import record
from tieconv.inspection.quantised.part_reader import E4M3

_UNIT = {"F64": 2.0**-20, "F32": 2.0**-20, "F16": 2.0**-11, "BF16": 2.0**-8}
"""The relative error of a stored number, by type."""

_LEAST = {"F64": 0.0, "F32": 0.0, "F16": 2.0**-25, "BF16": 0.0}
"""The absolute error of a small number: subnormal numbers of F16 are in reach of ordinary tables."""

SCALE = 2.0**-11
"""The relative error of a scale, which may be stored as float16."""

FEW = 16
"""Rows that determine the scheme and the size of the groups."""

_GROUPS = (0, 128, 64, 32)
"""Numbers of a row that share one scale, 0 for the whole row; 32 is a block of GGUF."""

_HALF_NF4 = (0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224, 0.44070982933044434,
             0.5626170039176941, 0.7229568362236023, 1.0)  # fmt: skip
_NF4 = (-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
        -0.18477343022823334, -0.09105003625154495, 0.0, *_HALF_NF4)  # fmt: skip
"""The levels of NF4, which bitsandbytes and the QLoRA paper (arXiv 2305.14314, appendix E) list."""

_FP8 = np.unique(E4M3[np.isfinite(E4M3)])

Scales = Callable[[Array, Array], tuple[Array, Array]]
"""Maps groups of E and of U, (groups, n), to their scales and offsets, (groups, 1) each."""


@record
class Scheme:
    """A quantisation with ``levels`` (ascending) times a scale, plus an offset.

    ``groups`` are the usual numbers of values with one scale.
    """

    name: str
    bits: int
    levels: Array
    scales: Scales
    groups: tuple[int, ...] = _GROUPS


@record
class RoundTrip:
    """The scheme of a head, and how many numbers share one scale (0: there is no scale)."""

    scheme: str
    bits: int
    group: int


def _by_largest(top: float) -> Scales:
    """Scale the largest magnitude of a group to the level ``top``."""
    return lambda e, _: (np.abs(e).max(axis=1, keepdims=True) / top, np.zeros((len(e), 1)))


def _by_signed_largest(e: Array, _: Array) -> tuple[Array, Array]:
    """Scale the number with the largest magnitude to the level −8, whatever its sign (Q4_0 of GGUF)."""
    largest = np.take_along_axis(e, np.abs(e).argmax(axis=1, keepdims=True), axis=1)
    return largest / -8, np.zeros_like(largest)


def _by_range(e: Array, _: Array) -> tuple[Array, Array]:
    """Scale the smallest number to the level 0 and the largest to 15 (Q4_1 of GGUF)."""
    least = e.min(axis=1, keepdims=True)
    return (e.max(axis=1, keepdims=True) - least) / 15, least


def _by_zero_point(e: Array, _: Array) -> tuple[Array, Array]:
    """Scale as `_by_range`, with 0 in the range and as a level (an integer zero point)."""
    least = np.minimum(e.min(axis=1, keepdims=True), 0)
    step = (np.maximum(e.max(axis=1, keepdims=True), 0) - least) / 15
    return step, np.rint(np.divide(least, step, out=np.zeros_like(step), where=step > 0)) * step


def _of_head(_: Array, u: Array) -> tuple[Array, Array]:
    """Scale the largest magnitude of the head to the level 1. The embedding's may differ, if scales are quantised."""
    return np.abs(u).max(axis=1, keepdims=True), np.zeros((len(u), 1))


def _unscaled(e: Array, _: Array) -> tuple[Array, Array]:
    return np.ones((len(e), 1)), np.zeros((len(e), 1))


SCHEMES = (
    Scheme("int8", 8, np.arange(-127.0, 128), _by_largest(127)),
    Scheme("int4", 4, np.arange(-8.0, 8), _by_largest(7)),
    Scheme("Q4_0", 4, np.arange(-8.0, 8), _by_signed_largest, (32,)),
    Scheme("int4 with a zero point", 4, np.arange(0.0, 16), _by_zero_point),
    Scheme("Q4_1", 4, np.arange(0.0, 16), _by_range, (32,)),
    Scheme("NF4", 4, np.array(_NF4), _of_head, (64, 128, 32, 0)),
    Scheme("FP8 (E4M3)", 8, _FP8, _by_largest(448)),
    Scheme("FP8 (E4M3)", 8, _FP8, _unscaled, (-1,)),
)


def round_trip(embed: Table, head: Table, rows: int, kinds: tuple[str, str]) -> RoundTrip | None:
    """Return the scheme if the head is the embedding after its round trip, else ``None``.

    Every number of the first ``rows`` rows is compared. It must equal one of the two levels around the embedding's
    number, within the error of the types. A merely small change does not pass. ``kinds`` are the types that the tables
    were last rounded to.
    """
    width, error = embed.width, (SCALE + sum(_UNIT[kind] for kind in kinds), sum(_LEAST[kind] for kind in kinds))
    some = (0, min(FEW, rows))
    for scheme, size in _choices(width):
        parts = (some, *spans(rows, width))
        if all(_coded(embed, head, part, scheme, size, error) for part in parts):
            return RoundTrip(scheme.name, scheme.bits, 0 if scheme.groups == (-1,) else size)
    return None


def _choices(width: int) -> Iterator[tuple[Scheme, int]]:
    """Yield each scheme with each size of its groups."""
    for scheme in SCHEMES:
        for size in scheme.groups:
            if size <= 0 or (size < width and width % size == 0):
                yield scheme, size if size > 0 else width


def _coded(
    embed: Table, head: Table, span: tuple[int, int], scheme: Scheme, group: int, error: tuple[float, float]
) -> bool:
    e, u = (table.values(*span).reshape(-1, group) for table in (embed, head))
    with np.errstate(all="ignore"):
        scales, offsets = scheme.scales(e, u)
        codes = np.divide(e - offsets, scales, out=np.zeros_like(e), where=scales != 0)
        above = np.clip(np.searchsorted(scheme.levels, codes), 0, len(scheme.levels) - 1)
        candidates = (scheme.levels[places] * scales + offsets for places in (above, np.maximum(above - 1, 0)))
        off = np.minimum(*(np.abs(u - levels) for levels in candidates))
        return bool((off <= error[0] * (np.abs(u) + np.abs(offsets)) + np.abs(scales) * 2.0**-20 + error[1]).all())


DIGITS = 24
"""Significant binary digits of a float32."""


def simplest(low: Array, high: Array) -> Array:
    """Return the number with the fewest significant binary digits, at most `DIGITS`, of each interval [low, high].

    An unbounded interval gives 1, an interval with 0 gives 0, and one without such a number gives NaN.
    """
    negative = high < 0
    small, large = np.where(negative, -high, low), np.where(negative, -low, high)
    numbers = np.full(len(low), np.nan)
    open_ = np.isnan(numbers) & np.isfinite(small) & np.isfinite(large) & (small > 0) & (small <= large)
    exponents = np.frexp(np.where(open_, large, 1.0))[1]
    for digits in range(1, DIGITS + 1):
        step = np.ldexp(1.0, exponents - digits)
        candidate = np.floor(np.where(open_, large, 1.0) / step) * step
        hit = open_ & np.isnan(numbers) & (candidate >= small)
        numbers = np.where(hit, candidate, numbers)
    numbers = np.where(negative, -numbers, numbers)
    numbers = np.where((low <= 0) & (high >= 0), 0.0, numbers)
    return np.where(np.isinf(low) & np.isinf(high), 1.0, numbers)
