"""Read the bytes of a model, local or remote."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    pass
from tieconv.checkpoint.files.model_files import FileState
from tieconv.checkpoint.files.weight_file import ByteRange


class Files(Protocol):
    """Reads from files by name, relative to one root."""

    def pread(self, name: str, size: int, offset: int) -> bytes:
        """Return up to ``size`` bytes at ``offset``, fewer only at the end of the file."""
        ...

    def state(self, name: str) -> FileState:
        """Return what identifies the file's content now."""
        ...


class ByteReader(Protocol):
    """Positioned reads from the files of one checkpoint."""

    def read_into(self, span: ByteRange, offset: int, buffer: memoryview) -> None:
        """Fill ``buffer`` with the bytes at ``offset`` of ``span``; ``UnreadableError`` if the file ends early."""
        ...
