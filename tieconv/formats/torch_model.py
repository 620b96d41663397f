"""A model stored by `torch.save`: one file, or shards and their index."""

from __future__ import annotations

from tieconv.checkpoint.records import Caution, Files, WeightFile
from tieconv.formats.directory import Model, Naming

SUFFIXES = (".bin", ".pt", ".pth")


def _read_one(files: Files, name: str) -> tuple[WeightFile, tuple[Caution, ...]]:
    from tieconv.formats.torch_file import read_torch_file  # other formats do without

    size = files.state(name).size
    sparse = bool(getattr(files, "costly", False))
    found = read_torch_file(lambda count, offset: files.pread(name, count, offset), size, name, sparse=sparse)
    expect = getattr(files, "expect", None)  # local files can hold what is read to its checksum
    if expect is not None:
        expect(found[:1])
    return found


TORCH = Model(
    Naming(
        format="torch",
        noun="torch file",
        single="pytorch_model.bin",
        suffixes=SUFFIXES,
        shard=r"-\d{5}-of-\d{5}\.(bin|pt|pth)$",
        # What trainers leave beside the weights.
        others=r"^(training_args|optimizer|scheduler|scaler|rng_state|random_states|dist_)[^/]*$",
    ),
    _read_one,
)
