"""Recognise a torch distributed checkpoint (DCP). `tieconv.formats.dcp.reader` reads it."""

from __future__ import annotations

from tieconv.checkpoint.files.interface import Files
from tieconv.checkpoint.files.model_files import Checkpoint, Listing
from tieconv.checkpoint.value_type import record
from tieconv.formats.dcp.names import METADATA, SHARD, SUFFIX


@record
class DistributedCheckpoint:
    """See `tieconv.formats.interface.Format`."""

    name: str = "dcp"

    def claims(self, listing: Listing) -> bool:
        if listing.named:
            return listing.named == METADATA or listing.named.endswith(SUFFIX)
        return any(entry.endswith(SUFFIX) or SHARD.fullmatch(entry) for entry in listing.top)

    def read(self, listing: Listing, files: Files) -> Checkpoint:
        from tieconv.formats.dcp.reader import read_directory  # imports the pickle interpreter, which few formats need

        return read_directory(listing, files, self.name)


DCP = DistributedCheckpoint()
