"""Decide whether one float tensor is another one rounded to its type. Imports numpy: import it lazily."""

from __future__ import annotations

from tieconv.inspection.numeric.bits import FORMATS, Array, Format, Pair, convert, is_nan


def cast_direction(pair: Pair) -> tuple[Pair, bool] | None:
    """Return the pair as (exact side, rounded side) and whether rounding lost nothing, or ``None``.

    Between F16 and BF16 either side may be the exact one; otherwise it is the wider. A NaN may become any NaN, but
    loses something unless converting back restores its bits. Proved over every element.
    """
    for candidate in _directions(pair):
        lossless = _proved(candidate)
        if lossless is not None:
            return candidate, lossless
    return None


def _directions(pair: Pair) -> list[Pair]:
    left, right = (FORMATS[record.dtype].width for record in (pair.left, pair.right))
    if left == right:
        return [pair, pair.reversed()]
    return [pair] if left > right else [pair.reversed()]


def _proved(pair: Pair) -> bool | None:
    """Return whether converting back is lossless; ``None`` if the right side is not the left one rounded."""
    exact, narrow = pair.formats
    if not _rounds_to(*pair.sample(), exact, narrow):
        return None
    lossless = True
    for left, right in pair.pieces():
        if not _rounds_to(left, right, exact, narrow):
            return None
        lossless = lossless and bool((convert(right, narrow, exact) == left).all())
    return lossless


def _rounds_to(left: Array, right: Array, exact: Format, narrow: Format) -> bool:
    same = convert(left, exact, narrow) == right
    if same.all():
        return True
    return bool((is_nan(left, exact) & is_nan(right, narrow))[~same].all())
