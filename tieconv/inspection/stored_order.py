"""Find what loaders derive from the order of a model's stored tensors."""

from __future__ import annotations

from collections.abc import Collection

from tieconv.checkpoint.files.dtypes import FLOATS
from tieconv.checkpoint.files.model_files import Checkpoint


def same_order(a: Checkpoint, b: Checkpoint, names: Collection[str]) -> bool:
    """Return whether two models store ``names`` in one order, so that every loader reads them in one order."""
    return a.format == b.format and _among(a, names) == _among(b, names)


def type_may_change(a: Checkpoint, b: Checkpoint) -> tuple[str, ...]:
    """Return the types among which transformers 5 may choose differently for two models; empty if it does not."""
    types_a, types_b = _first_types(a), _first_types(b)
    types = tuple(sorted({*types_a, *types_b}))
    return types if len(types) > 1 and (types_a != types_b or a.format != b.format) else ()


def _among(checkpoint: Checkpoint, names: Collection[str]) -> list[str]:
    return [name for name in checkpoint.tensors if name in names]


def _first_types(checkpoint: Checkpoint) -> tuple[str, ...]:
    """Return the types that transformers 5 may load every tensor in: the type of the first tensor that it reads.

    ``dtype="auto"``, its default, takes that type if the config sets none. safetensors reads the names of a file
    sorted, torch in the order of the file. Empty if the config sets a type.
    """
    config = checkpoint.config_values
    if not config or config.get("dtype") or config.get("torch_dtype"):
        return ()
    for file in sorted(checkpoint.files, key=lambda file: file.name):
        floats = [record for record in file.tensors if record.dtype in FLOATS]
        if floats:
            return floats[0].dtype, min(floats, key=lambda record: record.name).dtype
    return ()
