"""Read a model stored as safetensors: one file, or shards and their index."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tieconv.checkpoint.files.cautions import REFUSED_BY_READER, Caution
from tieconv.checkpoint.files.dtypes import BITS
from tieconv.checkpoint.files.weight_file import WeightFile
from tieconv.formats.directory import Model
from tieconv.formats.safetensors.header import SUFFIX, read_weight_file
from tieconv.formats.weight_set import Naming
from tieconv.text import count, shown

if TYPE_CHECKING:
    from tieconv.checkpoint.files.interface import Files


def _read_one(files: Files, name: str) -> tuple[WeightFile, tuple[Caution, ...]]:
    size = files.state(name).size
    file = read_weight_file(lambda count, offset: files.pread(name, count, offset), size, name)
    return file, unknown_dtypes(file)


def unknown_dtypes(file: WeightFile) -> tuple[Caution, ...]:
    """Return one caution for each dtype that safetensors does not know. safetensors refuses the whole file."""
    unknown: dict[str, list[str]] = {}
    for tensor in file.tensors:
        if tensor.dtype not in BITS:
            unknown.setdefault(tensor.dtype, []).append(tensor.name)
    return tuple(
        Caution(
            REFUSED_BY_READER,
            f"safetensors refuses {shown(file.name)}: "
            f"it does not know the dtype {shown(dtype, 40)} of {shown(names[0])}"
            + (f" and {count(len(names) - 1, 'other tensor')}" if len(names) > 1 else ""),
            (names[0],),
        )
        for dtype, names in list(unknown.items())[:_LISTED]
    )


_LISTED = 4
"""The most dtypes that are listed."""


SAFETENSORS = Model(
    Naming(
        format="safetensors",
        noun="safetensors file",
        single="model.safetensors",
        suffixes=(SUFFIX,),
        shard=r"-\d{5}-of-\d{5}\.safetensors$",
        others=r"^shard-\d{5}-model-\d{5}-of-\d{5}\.safetensors$",  # chunks of one rank, read as DCP
    ),
    _read_one,
)
