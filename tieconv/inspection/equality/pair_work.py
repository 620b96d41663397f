"""Bound the work of comparing each tensor of a kind with each other one, which a file can make quadratic."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from heapq import merge
from typing import NoReturn

from tieconv.checkpoint.files.weight_file import TensorRecord
from tieconv.errors import RefusedError
from tieconv.text import shown

MOST_PAIRS = 8192
"""Pairs that look alike at both ends and are compared in full."""
MOST_CROSS_PAIRS = 4_000_000
"""Pairs of different types whose ends are compared."""
_TIMES, _FREE = 16, 256 << 20
"""Pairs may take as many times the bytes of the tensors, and the bytes that are free."""

_Class = tuple[TensorRecord, ...]


class PairWork:
    """The comparisons of one bucket of classes."""

    def __init__(self, classes: Sequence[_Class]) -> None:
        self._classes = classes
        self._pairs, self._bytes = MOST_PAIRS, _FREE + _TIMES * sum(group[0].nbytes for group in classes)

    def spend(self, left: TensorRecord, right: TensorRecord) -> None:
        """Count one comparison. Raises `RefusedError` where it is one too many."""
        self._pairs -= 1
        self._bytes -= left.nbytes + right.nbytes
        if self._pairs < 0 or self._bytes < 0:
            _refuse(self._classes)


def cross_pairs(classes: Sequence[_Class]) -> Iterator[tuple[_Class, _Class]]:
    """Each two classes of different types, in the order of `itertools.combinations`. Raises `RefusedError`."""
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
        f"{shown(first.range.file)} holds {len(classes):,} different tensors that look like {shown(first.name)} "
        "at both ends: too many to compare each with each",
        "read the headers alone: --depth header",
        "duplicates.pairs",
    )
