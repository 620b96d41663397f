"""Names and limits that several formats share; the limits are what half a gigabyte of memory holds."""

from __future__ import annotations

from collections.abc import Iterable
from sys import getsizeof

INDEX_SUFFIX = ".index.json"
"""End of the name of a shard index."""
WINDOW = 1 << 20
"""Bytes of a JSON text that is parsed at once; a larger one is read in parts."""
MAX_TENSORS = 500_000
"""Tensors of one file, and names of one index. The largest mixtures of experts store a tenth of this."""
MAX_METADATA = 100_000
"""Entries of a file's own metadata."""
MAX_NAME_MEMORY = 80_000_000
"""Bytes of memory for the tensor names of one file. Half a million names of 100 characters take this."""


class NameCount:
    """Count the names of one file as they are read."""

    def __init__(self) -> None:
        self._names = self._memory = 0

    def excess(self, names: Iterable[str], count: int) -> str:
        """What ``count`` further names make too much; empty while all of them are within the limits."""
        self._names += count
        if self._names > MAX_TENSORS:
            return f"more than {MAX_TENSORS:,} tensors"
        self._memory += sum(map(getsizeof, names))
        return f"tensor names of more than {MAX_NAME_MEMORY:,} bytes" if self._memory > MAX_NAME_MEMORY else ""


class Shapes:
    """Keep one tuple for each shape of a file: half a million equal ones take 50 MB."""

    _MOST = 1000

    def __init__(self) -> None:
        self._known: dict[tuple[int, ...], tuple[int, ...]] = {}

    def shared(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return an equal tuple, where one was kept the same object."""
        if len(self._known) >= self._MOST:
            return self._known.get(shape, shape)
        return self._known.setdefault(shape, shape)
