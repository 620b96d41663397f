"""Names and limits that several formats share. Within these limits tieconv needs at most 500 MB of memory."""

from __future__ import annotations

import re
from collections.abc import Iterable
from sys import getsizeof

INDEX_SUFFIX = ".index.json"
"""Suffix of a shard index."""
WINDOW = 1 << 20
"""Bytes of JSON text that are parsed at once. A larger text is read in parts."""
MAX_TENSORS = 500_000
"""The most tensors of one file or one index. The largest mixture-of-experts models store a tenth of this."""
MAX_METADATA = 100_000
"""The most entries of the metadata of one file."""
MAX_NAME_MEMORY = 80_000_000
"""The most bytes of memory for the tensor names of one file: half a million names of 100 characters."""


class NameCount:
    """Count the names of one file as they are read."""

    def __init__(self) -> None:
        self._names = self._memory = 0

    def excess(self, names: Iterable[str], count: int) -> str:
        """Return which limit ``count`` further names exceed, or an empty string."""
        self._names += count
        if self._names > MAX_TENSORS:
            return f"more than {MAX_TENSORS:,} tensors"
        self._memory += sum(map(getsizeof, names))
        return f"tensor names of more than {MAX_NAME_MEMORY:,} bytes" if self._memory > MAX_NAME_MEMORY else ""


class Shapes:
    """Keep one tuple for each distinct shape of a file: half a million equal tuples take 50 MB."""

    _MOST = 1000

    def __init__(self) -> None:
        self._known: dict[tuple[int, ...], tuple[int, ...]] = {}

    def shared(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return an equal tuple that is shared if possible."""
        if len(self._known) >= self._MOST:
            return self._known.get(shape, shape)
        return self._known.setdefault(shape, shape)


# The file names of a torch distributed checkpoint.

DCP_METADATA = ".metadata"
DCP_SUFFIX = ".distcp"
TENSORS = "*.distcp"
"""The file name in the byte ranges of records: the dense tensors, one after the other. No file has this name."""
DCP_SHARD = re.compile(r"shard-(\d{5})-model-(\d{5})-of-(\d{5})\.safetensors")
"""The files that `HuggingFaceStorageWriter(save_distributed=True)` writes: each rank has its own numbers."""
