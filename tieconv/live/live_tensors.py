"""Capture the parameters and buffers of a module: types, shapes, identity, and the bytes that can be read."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tieconv.checkpoint.value_type import record
from tieconv.formats.torch.torch_dtypes import DTYPES


@record
class LiveTensor:
    """A parameter or buffer of a module.

    ``identity`` is that of the parameter object, ``storage`` that of its bytes. ``offset`` is the byte of the first
    element in the storage, ``stride`` in elements (``None``: dense). ``bytes_of`` is a tensor with the storage to read.
    ``unread`` is why the values cannot be read. ``shard`` is the local part of a sharded tensor. ``on_meta`` is true if
    the parameter is on the meta device, also if accelerate has its values.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    width: int
    identity: int
    storage: str
    offset: int = 0
    stride: tuple[int, ...] | None = None
    bytes_of: object = None
    unread: str = ""
    shard: object = None
    on_meta: bool = False

    @property
    def saved_storage(self) -> str:
        """What `save_pretrained` compares to find shared tensors: the object, for a parameter on the meta device."""
        return f"object {self.identity}" if self.on_meta else self.storage


def capture(module: Any, names: Iterable[str] | None = None) -> tuple[LiveTensor, ...]:
    """Return the tensors of the module's state dict, each name once; ``names`` restricts them. Copies no value.

    Sharded tensors are not gathered, and offloaded ones not loaded.
    """
    state = module.state_dict(keep_vars=True)
    return capture_state(module, state if names is None else {name: state[name] for name in names if name in state})


def capture_state(module: Any, state: Mapping[str, Any]) -> tuple[LiveTensor, ...]:
    """Return the tensors of ``state``, whose names are those of ``module``. Skips values that are not tensors."""
    import torch

    return tuple(_captured(module, name, value) for name, value in state.items() if isinstance(value, torch.Tensor))


def _captured(module: Any, name: str, value: Any) -> LiveTensor:
    shape = tuple(getattr(value, "ds_shape", None) or value.shape)  # ZeRO-3 leaves an empty tensor
    dtype, width = _dtype(value)
    identity = id(value)
    on_meta = value.is_meta
    if on_meta:
        value = _offloaded(module, name, value)
    shard = _shard(value)
    if shard is not None and shard.shape == value.shape:
        value, shard = shard, None  # one process, or a replica: the local tensor is the whole
    reason = _unreadable(value)
    if reason:
        local = _storage_key(shard) if shard is not None else f"object {identity}"
        return LiveTensor(name, dtype, shape, width, identity, local, 0, None, None, reason, shard, on_meta)
    stride = None if value.is_contiguous() else tuple(value.stride())
    offset = value.storage_offset() * value.element_size()
    return LiveTensor(
        name, dtype, shape, width, identity, _storage_key(value), offset, stride, value.detach(), on_meta=on_meta
    )


def _dtype(value: Any) -> tuple[str, int]:
    """Return the dtype as safetensors writes it, and the bytes of an element."""
    name = str(value.dtype).removeprefix("torch.")
    width: int = value.element_size()
    return (DTYPES[name].name if name in DTYPES else name.upper()), width


def _shard(value: Any) -> Any:
    """Return the local tensor of a `DTensor`, else ``None``."""
    distributed = sys.modules.get("torch.distributed.tensor")
    if distributed is None or not isinstance(value, distributed.DTensor):
        return None
    return value.to_local().detach()


def _offloaded(module: Any, name: str, value: Any) -> Any:
    """Return the tensor that accelerate moves to the device before each call, if it is in memory, else ``value``."""
    parent, _, leaf = name.rpartition(".")
    try:
        hook = getattr(module.get_submodule(parent), "_hf_hook", None)
    except AttributeError:
        return value
    for entry in (hook, *getattr(hook, "hooks", ())):
        in_memory = getattr(getattr(entry, "weights_map", None), "dataset", None)
        prefix = getattr(getattr(entry, "weights_map", None), "prefix", "")
        in_memory = getattr(in_memory, "state_dict", in_memory)
        if isinstance(in_memory, Mapping) and f"{prefix}{leaf}" in in_memory:
            return in_memory[f"{prefix}{leaf}"]
    return value


def _unreadable(value: Any) -> str:
    """Return why the values cannot be read as the bytes of one storage; empty if they can."""
    import torch
    from torch.utils._python_dispatch import is_traceable_wrapper_subclass

    kind = type(value)
    if hasattr(value, "ds_shape"):
        return "sharded by DeepSpeed ZeRO-3"
    if value.is_meta:
        return "on the meta device, without values"
    if _shard(value) is not None:
        return "sharded over processes"
    if is_traceable_wrapper_subclass(value):
        return f"a tensor of the class {kind.__name__}"
    if value.is_quantized or value.layout is not torch.strided or value.is_conj() or value.is_neg():
        return "not stored as dense values"
    try:
        value.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        return f"a tensor of the class {kind.__name__}"
    return ""


def _storage_key(value: Any) -> str:
    storage = value.untyped_storage()
    address = storage.data_ptr() or id(storage)  # storages without bytes are never shared
    return f"{value.device} {address}"


def shared_objects(tensors: Iterable[LiveTensor]) -> tuple[tuple[str, ...], ...]:
    """Return the groups of names that are one parameter object."""
    return tuple(_groups((tensor.identity, tensor.name) for tensor in tensors))


def shared_elements(tensors: Iterable[LiveTensor]) -> tuple[tuple[str, ...], ...]:
    """Return the groups of names of several parameter objects that are the same elements of one storage."""
    parameters = {tensor.identity: tensor for tensor in reversed(tuple(tensors)) if not tensor.on_meta}
    present = [tensor for tensor in reversed(parameters.values()) if 0 not in tensor.shape]
    return tuple(_groups((elements(tensor), tensor.name) for tensor in present))


def elements(tensor: LiveTensor) -> tuple[object, ...]:
    """Return what two names have in common exactly if they are the same elements of the same bytes."""
    return tensor.storage, tensor.offset, tensor.dtype, tensor.shape, tensor.stride


def _groups(pairs: Iterable[tuple[object, str]]) -> Iterator[tuple[str, ...]]:
    groups: dict[object, list[str]] = {}
    for key, name in pairs:
        groups.setdefault(key, []).append(name)
    return (tuple(names) for names in groups.values() if len(names) > 1)
