"""Bound the work of comparing all pairs of tensors of a kind, which a file can make quadratic."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from heapq import merge
from typing import NoReturn

from tieconv.checkpoint.files.weight_file import TensorRecord
from tieconv.errors import RefusedError
from tieconv.text import shown

MOST_PAIRS = 8192
"""Pairs with equal ends that are compared in full."""
MOST_CROSS_PAIRS = 4_000_000
"""Pairs of different types whose ends are compared."""
_TIMES, _FREE = 16, 256 << 20
"""Pairs may take this many times the bytes of the tensors, plus these bytes."""

_Class = tuple[TensorRecord, ...]


class PairWork:
    """The comparisons of one bucket of classes."""

    def __init__(self, classes: Sequence[_Class]) -> None:
        self._classes = classes
        self._pairs, self._bytes = MOST_PAIRS, _FREE + _TIMES * sum(group[0].nbytes for group in classes)

    def spend(self, left: TensorRecord, right: TensorRecord) -> None:
        """Count one comparison. Raises `RefusedError` if the limit is exceeded."""
        self._pairs -= 1
        self._bytes -= left.nbytes + right.nbytes
        if self._pairs < 0 or self._bytes < 0:
            _refuse(self._classes)


def cross_pairs(classes: Sequence[_Class]) -> Iterator[tuple[_Class, _Class]]:
    """Yield each pair of classes of two types, in the order of `itertools.combinations`. Raises `RefusedError`."""
    total = Counter(group[0].dtype for group in classes)
    if len(classes) ** 2 - sum(number**2 for number in total.values()) > 2 * MOST_CROSS_PAIRS:
        _refuse(classes)
    later: dict[str, list[int]] = defaultdict(list)
    for index in range(len(classes) - 1, -1, -1):
        later[classes[index][0].dtype].append(index)  # the next one is the last of each list
    for first in classes:
        later[first[0].dtype].pop()
        others = (reversed(places) for dtype, places in later.items() if dtype != first[0].dtype)
        for partner in merge(*others):
            yield first, classes[partner]


def _refuse(classes: Sequence[_Class]) -> NoReturn:
    first = classes[0][0]
    raise RefusedError(
        f"{shown(first.range.file)} has {len(classes):,} different tensors with the same ends as "
        f"{shown(first.name)}: too many to compare every pair",
        "read only the headers: --depth header",
        "duplicates.pairs",
    )
