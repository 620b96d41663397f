"""Predict what `save_pretrained` of transformers 5 writes and leaves out, without writing it.

Source: transformers 5.23, `PreTrainedModel.save_pretrained`, `remove_tied_weights_from_state_dict` and
`revert_weight_conversion`. The tests save real models of many classes and compare the names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

from tieconv.checkpoint.value_type import record
from tieconv.live.live_tensors import LiveTensor, extent
from tieconv.text import listed, shown


@record
class SavedNames:
    """The names that a save keeps, those that it drops with the name that stays, and why it would fail."""

    names: tuple[str, ...]
    left_out: tuple[tuple[str, str], ...] = ()
    refusal: str = ""


@record
class FileTensor:
    """A tensor under its name in the file. ``source`` is its name in memory, empty if the save computes it."""

    name: str
    source: str
    shape: tuple[int, ...] = ()
    dtype: object = None
    width: int = 0


def can_save(module: Any) -> bool:
    """Return whether the module has the `save_pretrained` of transformers, and no quantiser that changes the names."""
    quantised = getattr(module, "hf_quantizer", None) is not None
    has_method = hasattr(module, "save_pretrained") and hasattr(getattr(module, "config", None), "to_diff_dict")
    return has_method and not quantised


def keep_names(module: Any, tensors: Sequence[LiveTensor]) -> SavedNames:
    """Return which of the names `save_pretrained` keeps: of names with one storage, one."""
    ignored = set(getattr(module, "_keys_to_ignore_on_save", None) or ())
    left_out = [(tensor.name, "") for tensor in tensors if tensor.name in ignored]
    saved = [tensor for tensor in tensors if tensor.name not in ignored]
    tied_keys = tuple(_tied_keys(module))
    for sharing in _groups_by(saved, lambda tensor: tensor.saved_storage):
        droppable = _droppable(sharing, tied_keys)
        for cluster in _clusters(sharing):
            names = sorted(tensor.name for tensor in cluster)
            rest = [name for name in names if name not in droppable]
            if len({_area(tensor) for tensor in cluster}) > 1 or len(rest) > 1:
                reason = f"{listed(names)} share memory, and the class does not list them as tied"
                return SavedNames(tuple(tensor.name for tensor in saved), tuple(left_out), reason)
            left_out += [(name, rest[0] if rest else "") for name in names if name in droppable]
    dropped = {name for name, _ in left_out}
    written = [tensor for tensor in saved if tensor.name not in dropped]
    offloaded = (tensor for tensor in written if tensor.on_meta and not tensor.unread)
    refusal = _refused_config(module) or _refused_by_safetensors(offloaded)
    return SavedNames(tuple(tensor.name for tensor in written), tuple(left_out), refusal)


def _refused_config(module: Any) -> str:
    """Return why the config refuses to be saved: `DbrxConfig` refuses a true flag."""
    validate = getattr(getattr(module, "config", None), "validate", None)
    if not callable(validate):
        return ""
    try:
        validate()
    except Exception as error:  # noqa: BLE001 - validators of configs raise any class
        lines = str(error).strip().splitlines()
        return f"the config is not valid: {shown(lines[-1].strip() if lines else type(error).__name__, 200)}"
    return ""


def _refused_by_safetensors(offloaded: Iterable[LiveTensor]) -> str:
    """Return why safetensors refuses tensors that are separate on the meta device and one in the offload storage."""
    for sharing in _groups_by(offloaded, lambda tensor: tensor.storage):
        return f"{listed(sorted(tensor.name for tensor in sharing))} are offloaded and share memory"
    return ""


def _droppable(sharing: Sequence[LiveTensor], tied_keys: Iterable[str]) -> frozenset[str]:
    """Return the names that the class lists as tied. If it lists all names of a storage, the final one stays."""
    names = sorted(tensor.name for tensor in sharing)
    matching = [name for name in names if any(re.search(key, name) for key in tied_keys)]
    return frozenset(matching[: len(names) - 1])


def _tied_keys(module: Any) -> Iterator[str]:
    """Yield the patterns of `_tied_weights_keys`, those of submodules with their path."""
    for path, submodule in module.named_modules():
        for key in getattr(submodule, "_tied_weights_keys", None) or ():
            yield f"{path}.{key}" if path else key


def _groups_by(tensors: Iterable[LiveTensor], key: Callable[[LiveTensor], str]) -> Iterator[list[LiveTensor]]:
    """Yield the tensors with the same key: groups of two and more."""
    groups: dict[str, list[LiveTensor]] = {}
    for tensor in tensors:
        groups.setdefault(key(tensor), []).append(tensor)
    return (sharing for sharing in groups.values() if len(sharing) > 1)


def _clusters(sharing: Iterable[LiveTensor]) -> Iterator[list[LiveTensor]]:
    """Yield the tensors of one storage whose bytes touch the same bytes: groups of two and more."""
    clusters: list[list[LiveTensor]] = []
    end = -1
    for tensor in sorted(sharing, key=lambda entry: _area(entry)[:2]):
        if not clusters or tensor.offset >= end:
            clusters.append([])
        clusters[-1].append(tensor)
        end = max(end, _area(tensor)[1])
    return (cluster for cluster in clusters if len(cluster) > 1)


def _area(tensor: LiveTensor) -> tuple[int, int]:
    return tensor.offset, tensor.offset + extent(tensor)


def file_names(module: Any, tensors: Iterable[LiveTensor]) -> tuple[FileTensor, ...]:
    """Return the tensors under the names that the file gets: transformers 5 renames and splits some of them.

    The conversion runs on tensors without values. Where transformers cannot run it, the names stay.
    """
    present = tuple(tensors)
    unchanged = tuple(FileTensor(tensor.name, tensor.name) for tensor in present)
    try:
        revert = import_module("transformers.core_model_loading").revert_weight_conversion
    except (ImportError, AttributeError):
        return unchanged
    blank = {tensor.name: _without_values(tensor) for tensor in present}
    sources = {id(value): name for name, value in blank.items()}
    try:
        renamed: Mapping[str, Any] = revert(module, dict(blank))
    except Exception:  # noqa: BLE001 - operations of any model class; the names then stay as they are
        return unchanged
    return tuple(
        FileTensor(name, sources.get(id(value), ""), tuple(value.shape), value.dtype, value.element_size())
        for name, value in renamed.items()
    )


def _without_values(tensor: LiveTensor) -> Any:
    import torch

    from tieconv.formats.torch.pickle_stack import TORCH_NAMES

    dtype = getattr(torch, TORCH_NAMES.get(tensor.dtype, ""), torch.uint8)
    return torch.empty(tensor.shape, dtype=dtype, device="meta")
