"""Give the tensors of a training checkpoint the names of the model, without the prefixes of the training program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tieconv.architectures import find
from tieconv.architectures.name_prefix import below, model_prefixes, without_wrappers
from tieconv.checkpoint.family import Family
from tieconv.checkpoint.files.chunks import ChunkTable
from tieconv.checkpoint.files.model_files import Checkpoint
from tieconv.checkpoint.files.weight_file import TensorRecord
from tieconv.errors import RefusedError
from tieconv.text import command, shell_word, shown


def with_bare_names(checkpoint: Checkpoint, embed: str | None = None) -> Checkpoint:
    """Return the checkpoint with the names of the model, and without the tensors that are not below the prefix.

    ``embed`` is the stored name of the embedding, if the user gave it. Raises `RefusedError` if no prefix or several
    fit, or if a tensor beside the model is not a counter.
    """
    tensors, table = checkpoint.tensors, checkpoint.table
    prefix = _prefix(checkpoint, embed)
    names = below(prefix, tensors)
    outside = {name: record for name, record in tensors.items() if name not in names.values()}
    _check_outside(checkpoint, prefix, outside)
    bare = {stored: name for name, stored in names.items()}
    files = tuple(
        replace(file, tensors=tuple(_renamed(record, bare) for record in file.tensors if record.name in bare))
        for file in checkpoint.files
    )
    renamed = ChunkTable(
        {name: table.chunks[stored] for name, stored in names.items()},
        frozenset(name for name, stored in names.items() if stored in table.overlapping),
        table.training,
        {},
        names,
        outside,
    )
    return replace(checkpoint, files=files, table=renamed)


def bare_name(checkpoint: Checkpoint, name: str | None) -> str | None:
    """Return the name that a stored tensor has in ``checkpoint``, whose names are bare."""
    bare = {stored: name for name, stored in checkpoint.table.stored_names.items()}
    return None if name is None else bare.get(name, name)


def _prefix(checkpoint: Checkpoint, embed: str | None) -> str:
    shapes = {name: record.shape for name, record in checkpoint.tensors.items()}
    family = find(checkpoint.config_values, shapes)
    starts = checkpoint.table.starts
    prefixes = model_prefixes(family, shapes, starts)
    if embed is not None:
        chosen = [prefix for prefix in prefixes if without_wrappers(embed).startswith(prefix)]
        prefixes = tuple(chosen[-1:]) or (starts.get(embed, ""),)
    if len(prefixes) == 1:
        return prefixes[0]
    if not prefixes and not family.trusted:
        return ""
    raise _unknown_names(checkpoint, family) if not prefixes else _several(checkpoint, family, prefixes)


def _unknown_names(checkpoint: Checkpoint, family: Family) -> RefusedError:
    return RefusedError(
        f"{shown(checkpoint.source)} has no tensor {shown(family.input_embedding or '')}, "
        f"so its names are not those of {shown(family.architecture)}",
        "export it with the tool that trained it, which knows its own names",
        "dcp.names",
    )


def _several(checkpoint: Checkpoint, family: Family, prefixes: tuple[str, ...]) -> RefusedError:
    first, second = prefixes[:2]
    embedding = family.input_embedding or "NAME"
    option = f"--embed {shell_word(first + embedding)}"
    return RefusedError(
        f"{shown(checkpoint.source)} holds several models, under {_named(first)} and {_named(second)}",
        f"choose one: {command('convert', checkpoint.source, '--to', 'safetensors', '-o', 'OUT', option)}",
        "dcp.several",
    )


def _named(prefix: str) -> str:
    return shown(prefix) if prefix else "no prefix"


def _check_outside(checkpoint: Checkpoint, prefix: str, outside: Mapping[str, TensorRecord]) -> None:
    """Refuse to leave out a tensor that may belong to the model. A counter has one element."""
    left = next((record for record in outside.values() if record.elements > 1), None)
    if left is not None and not _is_model_of_its_own(checkpoint, left.name):
        raise RefusedError(
            f"{shown(checkpoint.source)}: {shown(left.name)} is not below {shown(prefix)}, where the model is",
            "save the model's state dict alone, then convert that checkpoint",
            "dcp.outside-model",
        )


def _is_model_of_its_own(checkpoint: Checkpoint, name: str) -> bool:
    """Return whether another state dict of the checkpoint, such as averaged weights, holds the tensor."""
    return name in checkpoint.table.starts


def _renamed(record: TensorRecord, bare: Mapping[str, str]) -> TensorRecord:
    return TensorRecord(bare[record.name], record.dtype, record.shape, record.range)
