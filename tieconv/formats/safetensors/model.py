"""A model stored as safetensors: one file, or shards and their index."""

from __future__ import annotations

from tieconv.checkpoint.model_files import Caution, Files, WeightFile
from tieconv.formats.directory import Model
from tieconv.formats.safetensors.header import SUFFIX, read_weight_file, unknown_dtypes
from tieconv.formats.weight_set import Naming


def _read_one(files: Files, name: str) -> tuple[WeightFile, tuple[Caution, ...]]:
    size = files.state(name).size
    file = read_weight_file(lambda count, offset: files.pread(name, count, offset), size, name)
    return file, unknown_dtypes(file)


SAFETENSORS = Model(
    Naming(
        format="safetensors",
        noun="safetensors file",
        single="model.safetensors",
        suffixes=(SUFFIX,),
        shard=r"-\d{5}-of-\d{5}\.safetensors$",
    ),
    _read_one,
)
