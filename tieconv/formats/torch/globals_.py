"""The globals that a torch file may name, and the function that replaces each. torch is never imported.

Source: `torch._utils`, `torch._tensor` and `torch._weights_only_unpickler` of torch 2.13.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NoReturn

from tieconv.formats.torch.pickle.values import (
    Global,
    Globals,
    Opaque,
    Pairs,
    Shortcut,
    describe,
    refuse,
)
from tieconv.formats.torch.rebuild import (
    PARAMETER,
    Arguments,
    natural,
    parameter,
    size,
    tensor,
    tensor_from_type,
    tensor_v2,
    tensor_v3,
)
from tieconv.formats.torch.shortcut import usual_tensors
from tieconv.formats.torch.torch_dtypes import BYTES, CLASSES, DTYPES
from tieconv.text import count


def _pairs(arguments: Arguments) -> Pairs:
    """Build an `OrderedDict` from nothing, or from one list of pairs, as Python 2 wrote it."""
    if not arguments:
        return Pairs()
    (entries,) = arguments
    if isinstance(entries, Pairs):
        return Pairs(list(entries.items))
    items = entries if isinstance(entries, list) else [entries]
    pairs = [entry for entry in items if isinstance(entry, tuple | list) and len(entry) == 2]
    if items is not entries or len(pairs) != len(items):
        refuse("makes a dictionary from values that are not pairs", "pickle.malformed")
    return Pairs([(key, value) for key, value in pairs])


def _function(
    name: str,
    make: Callable[[Arguments], object],
    fewest: int,
    most: int | None = None,
    shortcut: Shortcut | None = None,
) -> tuple[str, Global]:
    """Return a global that may be called with ``fewest`` to ``most`` arguments."""

    def checked(arguments: Arguments) -> object:
        if not fewest <= len(arguments) <= (fewest if most is None else most):
            refuse(f"calls {name} with {count(len(arguments), 'argument')}", "pickle.arguments")
        return make(arguments)

    return name, Global(name, checked, shortcut=shortcut)


def _opaque(name: str) -> tuple[str, Global]:
    return _function(name, lambda _arguments: Opaque(name), 0, 16)


def _encoded(arguments: Arguments) -> Opaque:
    """Replace bytes as Python 2 pickles them: a text, its encoding and an error mode."""
    if not all(type(argument) is str for argument in arguments):
        refuse("encodes a value that is not text", "pickle.arguments")
    return Opaque("_codecs.encode")


def _collection(name: str) -> tuple[str, Global]:
    """Return a global that replaces a set or a counter of at most one list, tuple or dictionary."""

    def make(arguments: Arguments) -> Opaque:
        if arguments and not isinstance(arguments[0], list | tuple | Pairs):
            refuse(f"makes {name} of {describe(arguments[0])}", "pickle.arguments")
        return Opaque(name)

    return _function(name, make, 0, 1)


def _training_value(name: str) -> tuple[str, Global]:
    """Return a global of training states that ``torch.load(weights_only=True)`` refuses."""
    return name, _opaque(name)[1]._replace(weights_only=False)


_DEVICE = re.compile(r"(cpu|cuda|mps|xpu|meta|npu|hpu|mtia|xla|privateuseone)(:(0|[1-9][0-9]?))?")


def _device(arguments: Arguments) -> Opaque:
    """Replace a device, given its name and maybe its number. torch refuses other arguments too."""
    words = arguments[0]
    number = arguments[1:] == () or (natural(arguments[1]) and type(words) is str and ":" not in words)
    if type(words) is not str or not _DEVICE.fullmatch(words) or not number:
        refuse("names an unknown device", "pickle.arguments")
    return Opaque("torch.device")


def _unsupported(name: str, noun: str, hint: str) -> tuple[str, Global]:
    def stop(_arguments: Arguments) -> NoReturn:
        refuse(f"holds {noun}, which tieconv does not read", "torch.unsupported", hint)

    return name, Global(name, stop)


def _dtypes() -> dict[str, Global]:
    return {f"torch.{name}": Global(f"torch.{name}", value=dtype) for name, dtype in DTYPES.items()}


def _storages() -> dict[str, Global]:
    names = {f"torch.{word}Storage": DTYPES[name] for word, name in CLASSES.items()}
    names |= dict.fromkeys(
        ("torch.UntypedStorage", "torch.storage.UntypedStorage", "torch.storage._UntypedStorage"), BYTES
    )
    return {name: Global(name, value=dtype) for name, dtype in names.items()}


_QUANTISED = ("QInt8", "QInt32", "QUInt8", "QUInt4x2", "QUInt2x4")
_REBUILT = {
    "_rebuild_sparse_tensor": "a sparse tensor",
    "_rebuild_qtensor": "a quantised torch tensor",
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
            _function("torch._utils._rebuild_tensor", tensor, 4),
            _function("torch._utils._rebuild_tensor_v2", tensor_v2, 6, 7, usual_tensors),
            _function("torch._utils._rebuild_tensor_v3", tensor_v3, 7, 8),
            _function("torch._utils._rebuild_parameter", parameter, 3),
            _function("torch._utils._rebuild_parameter_with_state", parameter, 4),
            _function("torch._tensor._rebuild_from_type_v2", tensor_from_type, 4),
            _function("torch.Size", size, 1),
            _function("torch.device", _device, 1, 2),
            _opaque("torch.serialization._get_layout"),
            # Values of training states: accepted, never inspected.
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
    **{name: Global(name) for name in ("torch.Tensor", PARAMETER)},
    **{name: Global(name, weights_only=False) for name in ("torch._tensor.Tensor", "numpy.ndarray")},
    **{
        f"torch.{name}": Global(f"torch.{name}")
        for name in ("strided", "sparse_coo", "per_tensor_affine", "per_channel_affine")
    },
}
"""The allowed globals by ``module.name``. Any other global is refused."""
