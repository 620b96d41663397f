"""Check the CRC-32 of storages while they are read, without a second read."""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Iterable

from tieconv.checkpoint.weight_file import Storage, WeightFile
from tieconv.errors import UnreadableError
from tieconv.text import shown


class Sums:
    """Tracks how far each storage of some files was read in order.

    Several threads may read at the same time. A read that does not continue a storage is ignored.
    """

    def __init__(self) -> None:
        self._files: dict[str, WeightFile] = {}
        self._sorted: dict[str, tuple[list[int], list[Storage]]] = {}
        self._read: dict[tuple[str, int], tuple[int, int]] = {}
        self._right: set[tuple[str, int]] = set()

    def expect(self, files: Iterable[WeightFile]) -> None:
        """Check the storages of ``files`` that have a checksum."""
        self._files.update((file.name, file) for file in files if file.storages)

    def is_right(self, storage: Storage) -> bool:
        """Return whether the whole storage was read and its checksum was right."""
        return (storage.range.file, storage.range.start) in self._right

    def seen(self, name: str, position: int, data: memoryview) -> None:
        """Record bytes read from the file ``name``. Raises `UnreadableError` if they complete a damaged storage."""
        if name not in self._files:
            return
        starts, storages = self._lookup(name)
        for index in range(max(bisect_right(starts, position) - 1, 0), len(storages)):
            storage = storages[index]
            skipped = max(storage.range.start - position, 0)  # bytes between two storages
            data, position = data[skipped:], position + skipped
            if not data:
                break
            part = data[: max(storage.range.end - position, 0)]
            self._feed(storage, position, part)
            data, position = data[len(part) :], position + len(part)

    def _lookup(self, name: str) -> tuple[list[int], list[Storage]]:
        if name not in self._sorted:
            held = [storage for storage in self._files[name].storages if storage.crc is not None]
            held.sort(key=lambda storage: storage.range.start)
            self._sorted[name] = [storage.range.start for storage in held], held
        return self._sorted[name]

    def _feed(self, storage: Storage, position: int, data: memoryview) -> None:
        key = storage.range.file, storage.range.start
        if not data or key in self._right:
            return
        expected, crc = self._read.get(key, (storage.range.start, 0))
        if position == storage.range.start:
            expected, crc = position, 0
        if position != expected:
            return
        position, crc = position + len(data), zlib.crc32(data, crc)
        self._read[key] = position, crc
        if position < storage.range.end:
            return
        if crc != storage.crc:
            raise damaged(self._files[storage.range.file], storage)
        self._right.add(key)


def damaged(file: WeightFile, storage: Storage) -> UnreadableError:
    """Return the error for a storage with a wrong checksum."""
    name = next((record.name for record in file.tensors if record.storage == storage.key), storage.key)
    return UnreadableError(
        f"{shown(file.name)}: the bytes of tensor {shown(name)} do not match their checksum",
        "the file is damaged: fetch it again",
        "torch.checksum",
    )
