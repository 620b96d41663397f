"""A model stored by `torch.save`: one file, or shards and their index."""

from __future__ import annotations

import re

from tieconv.checkpoint.records import Caution, Checkpoint, Files, Listing, WeightFile
from tieconv.formats.directory import Naming, read_model

SUFFIXES = (".bin", ".pt", ".pth")
NAMING = Naming(
    format="torch",
    noun="torch file",
    single="pytorch_model.bin",
    suffixes=SUFFIXES,
    shard=re.compile(r"-\d{5}-of-\d{5}\.(bin|pt|pth)$"),
    # What trainers leave beside the weights.
    others=re.compile(r"^(training_args|optimizer|scheduler|scaler|rng_state|random_states|dist_)[^/]*$"),
)


class TorchModel:
    """The torch format; see `tieconv.formats.interface.Format`."""

    name = NAMING.format

    def claims(self, listing: Listing) -> bool:
        return NAMING.claims(listing)

    def read(self, listing: Listing, files: Files) -> Checkpoint:
        return read_model(NAMING, listing, files, _read_one)


def _read_one(files: Files, name: str) -> tuple[WeightFile, tuple[Caution, ...]]:
    from tieconv.formats.torch_file import read_torch_file  # other formats do without

    size = files.state(name).size
    return read_torch_file(lambda count, offset: files.pread(name, count, offset), size, name)


TORCH = TorchModel()
