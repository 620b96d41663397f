"""Capture the parameters and buffers of a module: types, shapes, identity, and the bytes that can be read.

Tied names that this process cannot read whole are compared by their local shards.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import prod
from typing import Any

from tieconv.checkpoint.inspection import Inspection, State
from tieconv.checkpoint.relation.proved import OtherBytes, Unread
from tieconv.checkpoint.tie_group import Member, Tie
from tieconv.checkpoint.value_type import record
from tieconv.checkpoint.weight_file import ByteRange, Storage, TensorRecord, WeightFile
from tieconv.errors import RefusedError, UnreadableError
from tieconv.formats.torch.pickle_stack import DTYPES
from tieconv.sources.strided import row_major
from tieconv.text import shown


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
    """Return the tensors of ``state``, whose names are those of ``module``. Skips values that are not tensors.

    Raises `RefusedError` for a tensor without a shape: of a lazy module, nested, or with a symbolic size.
    """
    import torch

    return tuple(_captured(module, name, value) for name, value in state.items() if isinstance(value, torch.Tensor))


def _captured(module: Any, name: str, value: Any) -> LiveTensor:
    shape = _shape(name, value)
    dtype, width = dtype_name(value.dtype), value.element_size()
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


def _shape(name: str, value: Any) -> tuple[int, ...]:
    import torch

    if torch.nn.parameter.is_lazy(value):
        reason, hint = "its lazy module has not run yet", "run the model once on an input, then call tieconv again"
    elif value.is_nested:
        reason, hint = "it is a nested tensor", "call tieconv with a submodule without this tensor"
    else:
        shape = tuple(getattr(value, "ds_shape", None) or value.shape)  # ZeRO-3 leaves an empty tensor
        if all(type(side) is int for side in shape):
            return shape
        reason, hint = "a size of it is symbolic", "call tieconv outside the trace, with the module itself"
    raise RefusedError(f"{shown(name)} has no shape: {reason}", hint, "live.shape")


def dtype_name(dtype: object) -> str:
    """Return a dtype of torch as safetensors writes it."""
    name = str(dtype).removeprefix("torch.")
    return DTYPES[name].name if name in DTYPES else name.upper()


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
        storage = value.untyped_storage()
        if storage.device != value.device:  # a fake tensor says "cpu", and its storage is on the meta device
            return "a fake tensor, without values"
        storage.data_ptr()
    except (RuntimeError, NotImplementedError):
        return f"a tensor of the class {kind.__name__}"
    return "freed, without values" if value.numel() and not storage.nbytes() else ""


def _storage_key(value: Any) -> str:
    address = value.untyped_storage().data_ptr() or id(value)  # storages without bytes are never shared
    return f"{value.device} {address}"


def shared_objects(tensors: Iterable[LiveTensor]) -> tuple[tuple[str, ...], ...]:
    """Return the groups of names that are one parameter object."""
    return grouped((tensor.identity, tensor.name) for tensor in tensors)


def shared_elements(tensors: Iterable[LiveTensor]) -> tuple[tuple[str, ...], ...]:
    """Return the groups of names of several parameter objects that are the same elements of one storage."""
    parameters = {tensor.identity: tensor for tensor in reversed(tuple(tensors)) if not tensor.on_meta}
    present = [tensor for tensor in reversed(parameters.values()) if 0 not in tensor.shape]
    return grouped((elements(tensor), tensor.name) for tensor in present)


def elements(tensor: LiveTensor) -> tuple[object, ...]:
    """Return what two names have in common exactly if they are the same elements of the same bytes."""
    return tensor.storage, tensor.offset, tensor.dtype, tensor.shape, tensor.stride


def grouped(pairs: Iterable[tuple[object, str]]) -> tuple[tuple[str, ...], ...]:
    """Return the names with the same key: groups of two and more."""
    groups: dict[object, list[str]] = {}
    for key, name in pairs:
        groups.setdefault(key, []).append(name)
    return tuple(tuple(names) for names in groups.values() if len(names) > 1)


_ELEMENTS = 16 * 1024 * 1024
"""Elements compared at a time: a copy to another device takes no more memory."""


def with_local_shards(evidence: Inspection, tensors: Mapping[str, LiveTensor]) -> Inspection:
    """Return the evidence with the reason of each unread name, and with the shards of this process compared.

    Different shards prove different tensors. Equal shards prove nothing about the others, so the name stays unread.
    ``tensors`` are by their names in the evidence.
    """
    ties: list[Tie] = []
    for tie in evidence.ties:
        reference = next((member.name for member in tie.members if member.state is State.CANONICAL), "")
        members = tuple(_compared(member, reference, tensors) for member in tie.members)
        differs = any(isinstance(member.relation, OtherBytes) for member in members)
        ties.append(replace(tie, members=members, consistent=False if differs and tie.declared else tie.consistent))
    return replace(evidence, ties=tuple(ties))


def _compared(member: Member, reference: str, tensors: Mapping[str, LiveTensor]) -> Member:
    left, right = tensors.get(reference), tensors.get(member.name)
    if member.state is not State.UNREAD or left is None or right is None:
        return member
    reason = right.unread or left.unread
    if left.shard is not None and right.shard is not None:
        if not equal_values(left.shard, right.shard):
            return replace(member, relation=OtherBytes(reason="the local shards differ"))
        reason = "the local shards are equal. tieconv did not gather the others"
    return replace(member, relation=Unread(reason=reason)) if reason else member


def equal_values(left: Any, right: Any) -> bool:
    """Return whether two torch tensors have the same type, shape and bytes. They may be on two devices."""
    import torch

    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    rows = zip(left.reshape(-1).split(_ELEMENTS), right.reshape(-1).split(_ELEMENTS), strict=True)
    return all(torch.equal(a.view(torch.uint8), b.to(a.device).view(torch.uint8)) for a, b in rows)


MEMORY = "memory"
"""The name of the weight file that has all storages, one after the other."""


class StorageReader:
    """A `ByteReader` of storages. It copies no more than one read from a device."""

    def __init__(self) -> None:
        self.bytes_read = 0
        self.equal_ranges: set[frozenset[ByteRange]] = set()  # two inspections of one model compare once
        self._starts: list[int] = []
        self._storages: list[Any] = []

    def add(self, start: int, holder: Any) -> None:
        """Serve the storage of the tensor ``holder`` from byte ``start`` on; ``None`` if it cannot be read."""
        import torch

        held = None
        if holder is not None:
            held = torch.empty(0, dtype=torch.uint8, device=holder.device).set_(holder.untyped_storage())
        self._starts.append(start)
        self._storages.append(held)

    def read_into(self, span: ByteRange, offset: int, buffer: memoryview) -> None:
        """Fill ``buffer`` with the bytes at ``offset`` of ``span``. Raises `UnreadableError` without values."""
        at = span.start + offset
        index = bisect_right(self._starts, at) - 1
        storage, first = self._storages[index], at - self._starts[index]
        if storage is None or first + len(buffer) > len(storage):
            raise UnreadableError("a tensor of the model has no values that tieconv can read", "", "live.unread")
        buffer.cast("B")[:] = memoryview(storage[first : first + len(buffer)].cpu().numpy())
        self.bytes_read += len(buffer)


def lay_out(tensors: Iterable[LiveTensor]) -> tuple[WeightFile, StorageReader]:
    """Return the tensors as one weight file, whose storages follow each other, and its reader."""
    reader = StorageReader()
    starts: dict[str, int] = {}
    storages: list[Storage] = []
    records: list[TensorRecord] = []
    end = 0
    for tensor in tensors:
        if tensor.storage not in starts:
            holder: Any = tensor.bytes_of
            size = holder.untyped_storage().nbytes() if holder is not None else prod(tensor.shape) * tensor.width
            starts[tensor.storage] = end
            storages.append(Storage(tensor.storage, ByteRange(MEMORY, end, end + size)))
            reader.add(end, holder)
            end += size
        start = starts[tensor.storage] + tensor.offset
        span = ByteRange(MEMORY, start, start + extent(tensor))
        records.append(TensorRecord(tensor.name, tensor.dtype, tensor.shape, span, tensor.stride, tensor.storage))
    records.sort(key=lambda entry: entry.range.start)
    return WeightFile(MEMORY, end, 0, tuple(records), None, tuple(storages)), reader


def extent(tensor: LiveTensor) -> int:
    """Return the bytes from the first to the end of the last element."""
    if 0 in tensor.shape:
        return 0
    steps = tensor.stride or row_major(tensor.shape)
    return (1 + sum((side - 1) * step for side, step in zip(tensor.shape, steps, strict=True))) * tensor.width
