"""What a format is to the rest of the program."""

from __future__ import annotations

from typing import Protocol

from tieconv.checkpoint.records import Checkpoint, Files, Listing


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
