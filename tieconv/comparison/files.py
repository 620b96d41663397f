"""List differences of the other files: tokenizer, generation config, card. They do not decide the result."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from tieconv.checkpoint.files.model_files import Checkpoint, Layout
from tieconv.checkpoint.results.comparison import Contrast, FileDifference
from tieconv.sources.digest import same_hash
from tieconv.sources.local.files import open_regular

_BLOCK = 1024 * 1024


def compare_files(a: Checkpoint, b: Checkpoint, reader_a: object, reader_b: object) -> tuple[FileDifference, ...]:
    """Return files that only one directory has, or that differ; nothing for models of a single file.

    Files on the Hub are compared by their hashes and are not downloaded. Files in an object store are read.
    """
    if Layout.FILE in (a.layout, b.layout):
        return ()
    return tuple(_differences(a, b, reader_a, reader_b))


def _differences(a: Checkpoint, b: Checkpoint, reader_a: object, reader_b: object) -> Iterator[FileDifference]:
    def equal(name: str) -> bool:
        if a.revision or b.revision:
            return same_hash(reader_a, reader_b, name)
        return _same_bytes(Path(a.root), Path(b.root), name)

    for name in sorted(a.companions.keys() | b.companions.keys()):
        if name not in b.companions:
            yield FileDifference(name, Contrast.ONLY_A)
        elif name not in a.companions:
            yield FileDifference(name, Contrast.ONLY_B)
        elif a.companions[name] != b.companions[name] or not equal(name):
            yield FileDifference(name, Contrast.DISTINCT)


def _same_bytes(folder_a: Path, folder_b: Path, name: str) -> bool:
    first, second = open_regular(folder_a / name, folder_a), -1
    try:
        second = open_regular(folder_b / name, folder_b)
        if os.path.samestat(os.fstat(first), os.fstat(second)):
            return True
        offset = 0
        while True:
            left, right = os.pread(first, _BLOCK, offset), os.pread(second, _BLOCK, offset)
            if left != right or not left:
                return left == right
            offset += len(left)
    finally:
        os.close(first)
        if second >= 0:
            os.close(second)
