"""Read a user's arrays for the inputs of a graph."""

from __future__ import annotations

import io
import zipfile
from typing import Any, NoReturn

import numpy as np
import torch

from tieconv.errors import SettingsError, UnreadableError
from tieconv.onnx.parity.graph.bindings import Bindings, Padding, Role
from tieconv.reference import Batch
from tieconv.sources.user_files import read_bytes
from tieconv.text import command, shown, size

_LIMIT = 100_000_000
"""Bytes of all arrays: 12 million token ids."""
_ENCODER = (Role.MASK, Role.POSITIONS, Role.TYPES)


def read_inputs(path: str, bindings: Bindings, config: Any, longest: int) -> Batch:
    """Return the batch in the npz file at ``path``: integer arrays (batch × sequence) by the graph's input names.

    `input_ids` is required, and `decoder_input_ids` for an encoder-decoder. Without the others, all tokens count, their
    type is 0, and positions are counted from the mask. Raises `UnreadableError`, which names the file and the array.
    """
    if bindings.features is not None:
        _refuse(
            path, f"cannot be used: --inputs takes token ids, but the encoder reads {shown(bindings.features.name)}"
        )
    arrays = _arrays(path)
    roles = {value.name: role for role, value in bindings.inputs.items()}
    unknown = next((name for name in arrays if name not in roles), None)
    if unknown is not None:
        _refuse(path, f"has an array {shown(unknown)}, but parity takes arrays only for {', '.join(roles)}")
    arrays_by_role = {roles[name]: _whole(path, name, array) for name, array in arrays.items()}
    for role in (Role.IDS, Role.DECODER_IDS):
        if role in bindings.inputs and role not in arrays_by_role:
            _refuse(path, f"has no array {bindings.inputs[role].name}")
    ids, decoder = arrays_by_role[Role.IDS], arrays_by_role.get(Role.DECODER_IDS)
    for role, values in arrays_by_role.items():
        like = ids if decoder is None or role in (Role.IDS, *_ENCODER) else decoder
        if values.shape != like.shape or len(values) != len(ids):
            _refuse(path, f"has an array {role} of {_axes(values)} beside token ids of {_axes(like)}")
    kinds = int(getattr(config, "type_vocab_size", 0) or 1)
    rows = int(config.vocab_size)
    ends = {Role.MASK: 2, Role.DECODER_MASK: 2, Role.TYPES: kinds, Role.POSITIONS: longest}
    for role, values in arrays_by_role.items():
        _check_range(path, str(role), values, ends.get(role, rows))
        if values.shape[1] > longest:
            _refuse(path, f"has sequences of {values.shape[1]} tokens, but the model has {longest} positions")
    mask = arrays_by_role.get(Role.MASK, torch.ones_like(ids))
    behind = arrays_by_role.get(Role.DECODER_MASK)
    if not all(made.any(1).all() for made in (mask, behind) if made is not None):
        _refuse(path, "has a row without a token: its mask is 0 everywhere")
    if bindings.padding is Padding.NONE and not mask.all():
        _refuse(path, "has padding, which this graph does not take")
    if behind is None and decoder is not None and Role.DECODER_MASK in bindings.inputs:
        behind = torch.ones_like(decoder)
    types = arrays_by_role.get(Role.TYPES, torch.zeros_like(ids)) if Role.TYPES in bindings.inputs else None
    return Batch(ids, mask, decoder, types, decoder_mask=behind, given_positions=arrays_by_role.get(Role.POSITIONS))


def _arrays(path: str) -> dict[str, np.ndarray]:
    """Return the arrays. numpy never unpickles them, and no size that the file states is believed."""
    try:
        content = io.BytesIO(read_bytes(path, _LIMIT))
        with zipfile.ZipFile(content) as archive:
            stored = sum(entry.file_size for entry in archive.infolist())
        if stored > _LIMIT:
            _refuse(path, f"has arrays of {size(stored)}, and parity takes at most {size(_LIMIT)}")
        content.seek(0)
        with np.load(content, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except MemoryError:
        _refuse(path, "has an array that states more values than the file holds")
    except (SettingsError, UnreadableError):
        raise
    except Exception as error:  # noqa: BLE001 - zipfile and numpy raise many classes on a file that is not an archive
        _refuse(path, f"is not an npz file of number arrays: {shown(error, 200)}")


def _whole(path: str, name: str, array: np.ndarray) -> torch.Tensor:
    if array.dtype.kind not in "iub" or array.ndim != 2 or not array.size:
        _refuse(
            path,
            f"has an array {shown(name)} of {array.dtype} {list(array.shape)} instead of integers [batch, sequence]",
        )
    return torch.from_numpy(array.astype(np.int64))


def _check_range(path: str, name: str, values: torch.Tensor, end: int) -> None:
    low, high = int(values.min()), int(values.max())
    if low < 0 or high >= end:
        _refuse(path, f"has the value {low if low < 0 else high} in {name}, outside of 0 to {end - 1}")


def _axes(values: torch.Tensor) -> str:
    return " × ".join(map(str, values.shape))


def _refuse(path: str, why: str) -> NoReturn:
    raise UnreadableError(
        f"{shown(path)} {why}", f"list the graph's inputs: {command('inspect', 'ONNX')}", "parity.inputs"
    )
