"""What a format is to the rest of the program."""

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
        """Whether MODEL is of this format, by file names alone."""
        ...

    def read(self, listing: Listing, files: Files) -> Checkpoint:
        """The checkpoint, from headers and documents; `UnreadableError` for malformed input."""
        ...


def prepare(files: Files, names: Iterable[str]) -> None:
    """Tell a source that fetches which heads will be read next; others need no telling."""
    method = getattr(files, "prepare", None)
    if method is not None:
        method(names)
