"""The interface that every checkpoint format implements."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from tieconv.checkpoint.files.model_files import Checkpoint, Listing

if TYPE_CHECKING:
    from tieconv.checkpoint.files.interface import Files


class Format(Protocol):
    """One way to store a checkpoint."""

    @property
    def name(self) -> str:
        """The name that `inspect` prints."""
        ...

    def claims(self, listing: Listing) -> bool:
        """Return whether MODEL has this format, judged by file names alone."""
        ...

    def read(self, listing: Listing, files: Files) -> Checkpoint:
        """Read the checkpoint from its headers and documents. Raises `UnreadableError` for malformed input."""
        ...


def prepare(files: Files, names: Iterable[str]) -> None:
    """Announce which file headers will be read next, so that a remote source can fetch them ahead."""
    method = getattr(files, "prepare", None)
    if method is not None:
        method(names)
