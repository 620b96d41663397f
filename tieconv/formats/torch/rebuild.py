"""Rebuild tensors as the functions of `torch._utils` do, from storages, offsets, shapes and strides.

Source: `torch._utils` and `torch._tensor` of torch 2.13.
"""

from __future__ import annotations

from tieconv.formats.torch.pickle.values import (
    Dtype,
    Global,
    Pairs,
    StorageRef,
    StoredTensor,
    describe,
    refuse,
)
from tieconv.text import count

LIMIT = 1 << 63
MAX_RANK = 64
Arguments = tuple[object, ...]


def storage_reference(pid: object) -> StorageRef:
    """Return the storage of a persistent id ``("storage", class, key, location, elements)``."""
    if type(pid) is not tuple or len(pid) not in (5, 6) or pid[0] != "storage":
        refuse("refers to an object that is not a storage", "torch.persistent")
    _, kind, key, location, numel = pid[:5]
    if type(kind) is not Global or type(kind.value) is not Dtype or not kind.name.endswith("Storage"):
        refuse(f"has a storage of the class {describe(kind)}", "torch.storage-class")
    if type(key) is not str or len(key) > 64 or not key.isascii() or not key.isalnum():
        refuse("has a storage whose key is not letters and digits", "torch.storage-key")
    if type(location) is not str or type(numel) is not int or not 0 <= numel < LIMIT:
        refuse(f"describes storage {key} without a valid device and size", "torch.persistent")
    if len(pid) == 6 and pid[5] is not None:
        refuse("has a storage that is a view of another storage (torch before 0.4)", "torch.view-storage")
    return StorageRef(key, kind.value, numel)


def natural(value: object) -> bool:
    """Return whether a value is an integer from 0 to 2**63 - 1, and not a bool."""
    return type(value) is int and 0 <= value < LIMIT


def tensor(arguments: Arguments) -> StoredTensor:
    """Rebuild a tensor as `_rebuild_tensor` does: storage, offset, shape, stride."""
    storage = arguments[0]
    if arguments[4:5] and type(arguments[4]) is not bool:
        refuse(f"makes a tensor whose requires_grad is {describe(arguments[4])}", "torch.tensor")
    if not isinstance(storage, StorageRef):
        refuse(f"makes a tensor from {describe(storage)}", "torch.tensor")
    return _view(storage, storage.dtype, arguments[1:4])


def _view(storage: StorageRef, dtype: Dtype, arguments: Arguments) -> StoredTensor:
    offset, shape, stride = arguments
    if type(offset) is not int or not natural(offset):
        refuse(f"has a tensor that starts outside storage {storage.key}", "torch.offset")
    sides, steps = _sizes(shape, "shape"), _sizes(stride, "stride")
    if len(sides) != len(steps):
        refuse(f"has a tensor with {count(len(sides), 'size')} but {count(len(steps), 'stride')}", "torch.stride")
    return StoredTensor(storage, dtype, offset, sides, steps)


def _sizes(value: object, noun: str) -> tuple[int, ...]:
    if type(value) is not tuple or len(value) > MAX_RANK or not all(map(natural, value)):
        refuse(f"has a tensor whose {noun} is not a tuple of sizes", f"torch.{noun}")
    return value


def tensor_v2(arguments: Arguments) -> StoredTensor:
    """Rebuild a tensor as `_rebuild_tensor_v2` does, with its gradient flag, hooks and metadata."""
    _check_metadata(arguments[6:7])
    return tensor(arguments)


def tensor_v3(arguments: Arguments) -> StoredTensor:
    """Rebuild a tensor as `_rebuild_tensor_v3` does, whose dtype is not that of its storage."""
    storage, dtype = arguments[0], arguments[6]
    _check_metadata(arguments[7:8])
    if not isinstance(dtype, Global) or dtype.name.endswith("Storage") or not isinstance(storage, StorageRef):
        refuse("makes a tensor without a storage or a dtype", "torch.tensor")
    if not isinstance(dtype.value, Dtype):
        refuse("makes a tensor without a storage or a dtype", "torch.tensor")
    return _view(storage, dtype.value, arguments[1:4])


def _check_metadata(arguments: Arguments) -> None:
    """Refuse bits such as `conj` and `neg`, which change the meaning of the stored bytes."""
    for metadata in arguments:
        if metadata is not None and not (isinstance(metadata, Pairs) and not metadata.items):
            hint = "call resolve_conj().resolve_neg() before saving"
            refuse("has a lazily conjugated or negated tensor", "torch.lazy-bits", hint)


def parameter(arguments: Arguments) -> object:
    """Return the tensor that a parameter wraps."""
    if not isinstance(arguments[0], StoredTensor):
        refuse(f"makes a parameter from {describe(arguments[0])}", "torch.tensor")
    return arguments[0]


def tensor_from_type(arguments: Arguments) -> object:
    """Rebuild a tensor as ``_rebuild_from_type_v2(function, class, arguments, attributes)``, without attributes."""
    function, kind, inner, _ = arguments
    plain = isinstance(kind, Global) and kind.name in ("torch._tensor.Tensor", "torch.Tensor", PARAMETER)
    if not plain or not isinstance(function, Global) or function.make is None or type(inner) is not tuple:
        refuse(f"has a tensor of the class {describe(kind)}", "torch.subclass")
    made = function.make(inner)
    if not isinstance(made, StoredTensor):
        refuse(f"makes a tensor from {describe(made)}", "torch.tensor")
    return made


PARAMETER = "torch.nn.parameter.Parameter"


def size(arguments: Arguments) -> object:
    """Return the sizes of a `torch.Size`."""
    return _sizes(tuple(arguments[0]) if isinstance(arguments[0], list) else arguments[0], "shape")
