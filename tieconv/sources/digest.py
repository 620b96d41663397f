"""Hash whole files as the Hub does: SHA-256 for LFS and xet files, the git blob hash for others."""

from __future__ import annotations

import hashlib
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import Literal, cast

from tieconv.checkpoint.model_files import Files
from tieconv.checkpoint.weight_file import Storage, WeightFile
from tieconv.errors import UnreadableError
from tieconv.text import shown

Kind = Literal["sha256", "git"]
_BLOCK = 1 << 20


def same_hash(a: object, b: object, name: str) -> bool:
    """Return whether two files of one size are equal, by hash. Reads a file whose hash is unknown."""
    known = [stored for reader in (a, b) if (stored := _known(reader, name))]
    kind: Kind = "sha256" if any(stored[0] == "sha256" for stored in known) else "git"
    return _hash_of(a, name, kind) == _hash_of(b, name, kind)


def _known(reader: object, name: str) -> tuple[Kind, str] | None:
    # Only a source on the Hub knows the hash of a stored file.
    ask = cast("Callable[[str], tuple[Kind, str]] | None", getattr(reader, "known_hash", None))
    return ask(name) if ask else None


def _hash_of(reader: object, name: str, kind: Kind) -> str:
    known = _known(reader, name)
    if known is not None and known[0] == kind:
        return known[1]
    return hash_file(cast("Files", reader), name, kind)


def kind_of(digest: str) -> Kind:
    """Return the kind of a hash by its length: git uses SHA-1."""
    return "git" if len(digest) == 40 else "sha256"


def hash_bytes(data: bytes, kind: Kind) -> str:
    """Return the hash of a file's bytes."""
    digest = _new(kind, len(data))
    digest.update(data)
    return digest.hexdigest()


def hash_file(files: Files, name: str, kind: Kind) -> str:
    """Return the hash of a file, read in blocks. Raises the errors of ``files``."""
    size = files.state(name).size
    digest = _new(kind, size)
    for offset in range(0, size, _BLOCK):
        digest.update(files.pread(name, _BLOCK, offset))
    return digest.hexdigest()


def _new(kind: Kind, size: int) -> hashlib._Hash:
    return hashlib.sha256() if kind == "sha256" else hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)


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
        if name not in self._sorted:
            held = [storage for storage in self._files[name].storages if storage.crc is not None]
            held.sort(key=lambda storage: storage.range.start)
            self._sorted[name] = [storage.range.start for storage in held], held
        starts, storages = self._sorted[name]
        for index in range(max(bisect_right(starts, position) - 1, 0), len(storages)):
            storage = storages[index]
            skipped = max(storage.range.start - position, 0)  # bytes between two storages
            data, position = data[skipped:], position + skipped
            if not data:
                break
            part = data[: max(storage.range.end - position, 0)]
            self._feed(storage, position, part)
            data, position = data[len(part) :], position + len(part)

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
    problem = f"{shown(file.name)}: the bytes of tensor {shown(name)} do not match their checksum"
    return UnreadableError(problem, "the file is damaged: fetch it again", "torch.checksum")
