"""The DCP format: how a torch distributed checkpoint is recognised. What it holds is read by `dcp`."""

from __future__ import annotations

from tieconv.checkpoint.files.interface import Files
from tieconv.checkpoint.files.model_files import Checkpoint, Listing
from tieconv.checkpoint.value_type import record
from tieconv.formats.dcp.names import METADATA, SUFFIX


@record
class DistributedCheckpoint:
    """See `tieconv.formats.interface.Format`."""

    name: str = "dcp"

    def claims(self, listing: Listing) -> bool:
        if listing.named:
            return listing.named == METADATA or listing.named.endswith(SUFFIX)
        return any(entry.endswith(SUFFIX) for entry in listing.top)

    def read(self, listing: Listing, files: Files) -> Checkpoint:
        from tieconv.formats.dcp.reader import read_directory  # costs the pickle interpreter, which few formats need

        return read_directory(listing, files, self.name)


DCP = DistributedCheckpoint()
