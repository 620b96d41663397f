"""A model stored as safetensors: one file, or shards and their index."""

from __future__ import annotations

import re

from tieconv.checkpoint.records import Caution, Checkpoint, Files, Listing, WeightFile
from tieconv.formats.directory import Naming, read_model
from tieconv.formats.safetensors import SUFFIX, read_weight_file

NAMING = Naming(
    format="safetensors",
    noun="safetensors file",
    single="model.safetensors",
    suffixes=(SUFFIX,),
    shard=re.compile(r"-\d{5}-of-\d{5}\.safetensors$"),
)


class SafetensorsModel:
    """The safetensors format; see `tieconv.formats.interface.Format`."""

    name = NAMING.format

    def claims(self, listing: Listing) -> bool:
        return NAMING.claims(listing)

    def read(self, listing: Listing, files: Files) -> Checkpoint:
        return read_model(NAMING, listing, files, _read_one)


def _read_one(files: Files, name: str) -> tuple[WeightFile, tuple[Caution, ...]]:
    size = files.state(name).size
    return read_weight_file(lambda count, offset: files.pread(name, count, offset), size, name), ()


SAFETENSORS = SafetensorsModel()
