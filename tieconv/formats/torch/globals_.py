"""The globals that a torch file may name, and what becomes of a call to each. torch itself is never imported.

Source: `torch._utils`, `torch._tensor` and `torch._weights_only_unpickler` of torch 2.13.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NoReturn

from tieconv.formats.torch.pickle.values import (
    Dtype,
    Global,
    Globals,
    Opaque,
    Pairs,
    Shortcut,
    StorageRef,
    StoredTensor,
    describe,
    refuse,
)
from tieconv.formats.torch.shortcut import usual_tensors
from tieconv.text import count

LIMIT = 1 << 63
MAX_RANK = 64
Arguments = tuple[object, ...]

_DTYPES = {
    "bool": Dtype("BOOL", 1), "uint8": Dtype("U8", 1), "int8": Dtype("I8", 1),
    "int16": Dtype("I16", 2), "int32": Dtype("I32", 4), "int64": Dtype("I64", 8),
    "uint16": Dtype("U16", 2), "uint32": Dtype("U32", 4), "uint64": Dtype("U64", 8),
    "float16": Dtype("F16", 2), "bfloat16": Dtype("BF16", 2), "float32": Dtype("F32", 4), "float64": Dtype("F64", 8),
    "complex32": Dtype("C32", 4), "complex64": Dtype("C64", 8), "complex128": Dtype("C128", 16),
    "float8_e4m3fn": Dtype("F8_E4M3", 1), "float8_e4m3fnuz": Dtype("F8_E4M3FNUZ", 1),
    "float8_e5m2": Dtype("F8_E5M2", 1), "float8_e5m2fnuz": Dtype("F8_E5M2FNUZ", 1),
    "float8_e8m0fnu": Dtype("F8_E8M0", 1), "float4_e2m1fn_x2": Dtype("F4_E2M1X2", 1),
}  # fmt: skip
"""By torch's name. C32, C128 and F4_E2M1X2 are no names of safetensors: such tensors are carried as bytes."""

_CLASSES = {
    "Bool": "bool", "Byte": "uint8", "Char": "int8", "Short": "int16", "Int": "int32", "Long": "int64",
    "Half": "float16", "BFloat16": "bfloat16", "Float": "float32", "Double": "float64",
    "ComplexFloat": "complex64", "ComplexDouble": "complex128",
}  # fmt: skip
_BYTES = Dtype("U8", 1)

TORCH_NAMES = {dtype.name: name for name, dtype in _DTYPES.items()}
"""Dtype names of records to those of torch."""
STORAGE_CLASSES = {_DTYPES[name].name: f"{word}Storage" for word, name in _CLASSES.items()}
"""Dtype names of records to torch's storage classes, where the dtype has one."""
WIDTHS = {dtype.name: dtype.width for dtype in _DTYPES.values()}
"""Bytes of an element by the dtype names of records."""


def storage_reference(pid: object) -> StorageRef:
    """The storage that a persistent id ``("storage", class, key, location, elements)`` names."""
    if type(pid) is not tuple or len(pid) not in (5, 6) or pid[0] != "storage":
        refuse("refers to something that is no storage", "torch.persistent")
    _, kind, key, location, numel = pid[:5]
    if type(kind) is not Global or type(kind.value) is not Dtype or not kind.name.endswith("Storage"):
        refuse(f"has a storage of {describe(kind)}", "torch.storage-class")
    if type(key) is not str or len(key) > 64 or not key.isascii() or not key.isalnum():
        refuse("has a storage whose key is no plain name", "torch.storage-key")
    if type(location) is not str or type(numel) is not int or not 0 <= numel < LIMIT:
        refuse(f"describes storage {key} by other than a place and a size", "torch.persistent")
    if len(pid) == 6 and pid[5] is not None:
        refuse("has a storage that is a view of another one, as torch before 0.4 wrote it", "torch.view-storage")
    return StorageRef(key, kind.value, numel)


def natural(value: object) -> bool:
    """A whole number that fits 63 bits; a bool is none."""
    return type(value) is int and 0 <= value < LIMIT


def _tensor(arguments: Arguments) -> StoredTensor:
    storage = arguments[0]
    if arguments[4:5] and type(arguments[4]) is not bool:
        refuse(f"makes a tensor that requires {describe(arguments[4])} for a gradient", "torch.tensor")
    if not isinstance(storage, StorageRef):
        refuse(f"makes a tensor of {describe(storage)}", "torch.tensor")
    return _view(storage, storage.dtype, arguments[1:4])


def _view(storage: StorageRef, dtype: Dtype, arguments: Arguments) -> StoredTensor:
    offset, shape, stride = arguments
    if type(offset) is not int or not natural(offset):
        refuse(f"has a tensor that starts outside of storage {storage.key}", "torch.offset")
    sides, steps = _sizes(shape, "shape"), _sizes(stride, "stride")
    if len(sides) != len(steps):
        refuse(f"has a tensor of {count(len(sides), 'size')} and {count(len(steps), 'stride')}", "torch.stride")
    return StoredTensor(storage, dtype, offset, sides, steps)


def _sizes(value: object, noun: str) -> tuple[int, ...]:
    if type(value) is not tuple or len(value) > MAX_RANK or not all(map(natural, value)):
        refuse(f"has a tensor whose {noun} is no list of sizes", f"torch.{noun}")
    return value


def _v2(arguments: Arguments) -> StoredTensor:
    _check_metadata(arguments[6:7])
    return _tensor(arguments)


def _v3(arguments: Arguments) -> StoredTensor:
    storage, dtype = arguments[0], arguments[6]
    _check_metadata(arguments[7:8])
    if not isinstance(dtype, Global) or dtype.name.endswith("Storage") or not isinstance(storage, StorageRef):
        refuse("makes a tensor without a storage or a dtype", "torch.tensor")
    if not isinstance(dtype.value, Dtype):
        refuse("makes a tensor without a storage or a dtype", "torch.tensor")
    return _view(storage, dtype.value, arguments[1:4])


def _check_metadata(arguments: Arguments) -> None:
    """Bits such as `conj` and `neg` change what the stored bytes mean."""
    for metadata in arguments:
        if metadata is not None and not (isinstance(metadata, Pairs) and not metadata.items):
            refuse("has a tensor that stands conjugated or negated", "torch.lazy-bits", "resolve it before saving")


def _parameter(arguments: Arguments) -> object:
    if not isinstance(arguments[0], StoredTensor):
        refuse(f"makes a parameter of {describe(arguments[0])}", "torch.tensor")
    return arguments[0]


def _from_type(arguments: Arguments) -> object:
    """``_rebuild_from_type_v2(function, class, arguments, attributes)``: attributes of a plain tensor are dropped."""
    function, kind, inner, _ = arguments
    plain = isinstance(kind, Global) and kind.name in ("torch._tensor.Tensor", "torch.Tensor", _PARAMETER)
    if not plain or not isinstance(function, Global) or function.make is None or type(inner) is not tuple:
        refuse(f"has a tensor of the class {describe(kind)}", "torch.subclass")
    made = function.make(inner)
    if not isinstance(made, StoredTensor):
        refuse(f"makes a tensor of {describe(made)}", "torch.tensor")
    return made


_PARAMETER = "torch.nn.parameter.Parameter"


def _size(arguments: Arguments) -> object:
    return _sizes(tuple(arguments[0]) if isinstance(arguments[0], list) else arguments[0], "shape")


def _pairs(arguments: Arguments) -> Pairs:
    """`OrderedDict()`, or with one list of pairs, as Python 2 wrote it."""
    if not arguments:
        return Pairs()
    (entries,) = arguments
    if isinstance(entries, Pairs):
        return Pairs(list(entries.items))
    items = entries if isinstance(entries, list) else [entries]
    pairs = [entry for entry in items if isinstance(entry, tuple | list) and len(entry) == 2]
    if items is not entries or len(pairs) != len(items):
        refuse("makes a dictionary of other than pairs", "pickle.malformed")
    return Pairs([(key, value) for key, value in pairs])


def _function(
    name: str,
    make: Callable[[Arguments], object],
    fewest: int,
    most: int | None = None,
    shortcut: Shortcut | None = None,
) -> tuple[str, Global]:
    """A global that may be called with ``fewest`` to ``most`` arguments."""

    def checked(arguments: Arguments) -> object:
        if not fewest <= len(arguments) <= (fewest if most is None else most):
            refuse(f"calls {name} with {count(len(arguments), 'argument')}", "pickle.arguments")
        return make(arguments)

    return name, Global(name, checked, shortcut=shortcut)


def _opaque(name: str) -> tuple[str, Global]:
    return _function(name, lambda _arguments: Opaque(name), 0, 16)


def _encoded(arguments: Arguments) -> Opaque:
    """Bytes, as Python 2 pickles them: a text and the names of its encoding and of what to do about errors."""
    if not all(type(argument) is str for argument in arguments):
        refuse("encodes other than text", "pickle.arguments")
    return Opaque("_codecs.encode")


def _collection(name: str) -> tuple[str, Global]:
    """A set or a counter, of what at most one list, tuple or dictionary holds."""

    def make(arguments: Arguments) -> Opaque:
        if arguments and not isinstance(arguments[0], list | tuple | Pairs):
            refuse(f"makes {name} of {describe(arguments[0])}", "pickle.arguments")
        return Opaque(name)

    return _function(name, make, 0, 1)


def _training_value(name: str) -> tuple[str, Global]:
    """A value of a training state that ``torch.load(weights_only=True)`` refuses by its global."""
    return name, _opaque(name)[1]._replace(weights_only=False)


_DEVICE = re.compile(r"(cpu|cuda|mps|xpu|meta|npu|hpu|mtia|xla|privateuseone)(:(0|[1-9][0-9]?))?")


def _device(arguments: Arguments) -> Opaque:
    """A device by its name, and perhaps its number; torch itself refuses other arguments."""
    words = arguments[0]
    number = arguments[1:] == () or (natural(arguments[1]) and type(words) is str and ":" not in words)
    if type(words) is not str or not _DEVICE.fullmatch(words) or not number:
        refuse("names a device that is none", "pickle.arguments")
    return Opaque("torch.device")


def _unsupported(name: str, noun: str, hint: str) -> tuple[str, Global]:
    def stop(_arguments: Arguments) -> NoReturn:
        refuse(f"holds {noun}, which is not read", "torch.unsupported", hint)

    return name, Global(name, stop)


def _dtypes() -> dict[str, Global]:
    return {f"torch.{name}": Global(f"torch.{name}", value=dtype) for name, dtype in _DTYPES.items()}


def _storages() -> dict[str, Global]:
    names = {f"torch.{word}Storage": _DTYPES[name] for word, name in _CLASSES.items()}
    names |= dict.fromkeys(
        ("torch.UntypedStorage", "torch.storage.UntypedStorage", "torch.storage._UntypedStorage"), _BYTES
    )
    return {name: Global(name, value=dtype) for name, dtype in names.items()}


_QUANTISED = ("QInt8", "QInt32", "QUInt8", "QUInt4x2", "QUInt2x4")
_REBUILT = {
    "_rebuild_sparse_tensor": "a sparse tensor",
    "_rebuild_qtensor": "a quantised tensor of torch",
    "_rebuild_nested_tensor": "a nested tensor",
    "_rebuild_meta_tensor_no_storage": "a tensor on the meta device, which has no values",
    "_rebuild_wrapper_subclass": "a tensor subclass",
    "_rebuild_device_tensor_from_numpy": "a tensor of another device",
    "_rebuild_device_tensor_from_cpu_tensor": "a tensor of another device",
}
_HINT = "load it with torch, make the tensors dense (.to_dense(), .dequantize(), .cpu()) and save it again"

ALLOWED: Globals = {
    **_dtypes(),
    **_storages(),
    **dict(
        [
            _function("collections.OrderedDict", _pairs, 0, 1),
            _function("torch._utils._rebuild_tensor", _tensor, 4),
            _function("torch._utils._rebuild_tensor_v2", _v2, 6, 7, usual_tensors),
            _function("torch._utils._rebuild_tensor_v3", _v3, 7, 8),
            _function("torch._utils._rebuild_parameter", _parameter, 3),
            _function("torch._utils._rebuild_parameter_with_state", _parameter, 4),
            _function("torch._tensor._rebuild_from_type_v2", _from_type, 4),
            _function("torch.Size", _size, 1),
            _function("torch.device", _device, 1, 2),
            _opaque("torch.serialization._get_layout"),
            # Training states: kept apart, never looked into.
            _function("_codecs.encode", _encoded, 1, 3),
            *map(_collection, ("collections.Counter", "builtins.set", "__builtin__.set")),
            _training_value("numpy.dtype"),
            *(
                _training_value(f"numpy.{core}.multiarray.{name}")
                for core in ("core", "_core")
                for name in ("scalar", "_reconstruct")
            ),
            *(_unsupported(f"torch._utils.{name}", noun, _HINT) for name, noun in _REBUILT.items()),
        ]
    ),
    **{f"torch.{name}Storage": Global(f"torch.{name}Storage") for name in _QUANTISED},
    **{name: Global(name) for name in ("torch.Tensor", _PARAMETER)},
    **{name: Global(name, weights_only=False) for name in ("torch._tensor.Tensor", "numpy.ndarray")},
    **{
        f"torch.{name}": Global(f"torch.{name}")
        for name in ("strided", "sparse_coo", "per_tensor_affine", "per_channel_affine")
    },
}
"""By ``module.name``. Whatever is not here is refused by name."""
