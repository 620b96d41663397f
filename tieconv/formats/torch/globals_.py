"""The globals that a torch file may name, and the function that replaces each. torch is never imported."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from functools import lru_cache
from typing import NoReturn

from tieconv.formats.torch.pickle_stack import (
    BYTES,
    CLASSES,
    DTYPES,
    INNER,
    Dtype,
    Global,
    Globals,
    Opaque,
    Pairs,
    Persistent,
    Shortcut,
    Step,
    StorageRef,
    StoredTensor,
    describe,
    natural,
    refuse,
)
from tieconv.text import count

# Rebuild tensors as the functions of `torch._utils` do, from storages, offsets, shapes and strides.
#
# Source: `torch._utils` and `torch._tensor` of torch 2.13.

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
    if type(location) is not str or not natural(numel):
        refuse(f"describes storage {key} without a valid device and size", "torch.persistent")
    if len(pid) == 6 and pid[5] is not None:
        refuse("has a storage that is a view of another storage (torch before 0.4)", "torch.view-storage")
    return StorageRef(key, kind.value, numel)


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
    if not natural(offset):
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
    value = dtype.value if isinstance(dtype, Global) and not dtype.name.endswith("Storage") else None
    if not isinstance(value, Dtype) or not isinstance(storage, StorageRef):
        refuse("makes a tensor without a storage or a dtype", "torch.tensor")
    return _view(storage, value, arguments[1:4])


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


# Read the usual opcodes of a tensor as a whole, because a large model repeats them 500,000 times.
#
# `NAME BINPUT BINGET MARK  MARK "storage" class KEY "cpu" ELEMENTS TUPLE BINPERSID  OFFSET SHAPE STRIDE`
# `NEWFALSE OrderedDict() TUPLE REDUCE BINPUT`
#
# If one byte differs, the interpreter reads the opcodes one by one. It makes every refusal too. Source:
# `torch.serialization._save` of torch 2.13 with the default protocol, 2.

_GET, _PUT = rb"h(.)", rb"r(....)"
_NUMBER = rb"(?:K.|M..|J....)"
_SIZES = rb"(%(n)s\x85|%(n)s{2}\x86|%(n)s{3}\x87|\(%(n)s{4,8}t)" % {b"n": _NUMBER}
_CALL = (
    rb"\(" + _GET + rb"(?:h(.)|j(....))X(..)\0\0([0-9]{1,20})" + _PUT  # key
    + _GET + rb"(" + _NUMBER + rb")N?t" + _PUT + rb"Q"  # persistent id
    + rb"(" + _NUMBER + rb")" + _SIZES + _PUT + _SIZES + _PUT  # offset, shape, stride
    + rb"[\x88\x89]" + _GET + rb"\)R" + _PUT + rb"t" + _PUT + rb"R" + _PUT  # hooks, arguments, tensor
)  # fmt: skip
_TEXT = struct.Struct("<cI").unpack_from
_PUT_TEXT = struct.Struct("<cI").pack
_PLACES = struct.Struct("<7I").pack
FIRST = 4096
"""Memo entries before the shortcut is used. To compile the pattern takes as long as to read 500 tensors."""
_MOST = 1000
"""The most tensors of one step: picklers close a group after this many items."""


def usual_tensors(data: bytes, position: int, memo: list[object], persistent: Persistent) -> Step | None:
    """Read calls of ``_rebuild_tensor_v2`` and the names between them. The first MARK is before ``position``.

    Returns ``None`` if the first call is unusual. Adds to ``memo`` what the opcodes remember.
    """
    if len(memo) < FIRST:
        return None
    match = _pattern().match
    opening = _opening(data, position, memo)
    values: list[object] = []
    names: tuple[str, ...] = ()
    end = position
    while len(values) < 2 * _MOST:
        matched = match(data, position)
        made = matched and _tensor(matched, memo, len(memo) + len(names), persistent)
        if not matched or not made:
            break
        memo += names
        memo += made
        values += names
        values.append(made[-1])
        end = matched.end()
        names, position = _next(data, end, len(memo), opening)
        if not names:
            break
    return Step(end, values) if values else None


@lru_cache(maxsize=1)
def _pattern() -> re.Pattern[bytes]:
    return re.compile(_CALL, re.DOTALL)


def _opening(data: bytes, position: int, memo: list[object]) -> bytes:
    """Return the BINGET of the function and the MARK before ``position``, or nothing if they are not there."""
    opening = data[position - 3 : position]
    if not opening.startswith(b"h") or opening[1] >= len(memo):
        return b""
    function = memo[opening[1]]
    return opening if type(function) is Global and function.shortcut is usual_tensors else b""


def _next(data: bytes, start: int, number: int, opening: bytes) -> tuple[tuple[str, ...], int]:
    """Return the name after a call as a tuple, and the offset behind the MARK of the next call."""
    if len(data) - start < 5:
        return (), start
    opcode, size = _TEXT(data, start)
    put = start + 5 + size
    if opcode != b"X" or not opening or data[put : put + 8] != _PUT_TEXT(b"r", number) + opening:
        return (), start
    try:
        return (data[start + 5 : put].decode("utf-8"),), put + 8
    except UnicodeDecodeError:
        return (), start


def _tensor(
    matched: re.Match[bytes], memo: list[object], first: int, persistent: Persistent
) -> tuple[object, ...] | None:
    """Return what a call adds to the memo from ``first`` on, the tensor last. ``None`` if the call is unusual."""
    (
        word, short, long, key_length, key, key_put, location, elements, pid_put,
        start, shape, shape_put, stride, stride_put, hooks, hooks_put, arguments_put, tensor_put,
    ) = matched.groups()  # fmt: skip
    places = key_put + pid_put + shape_put + stride_put + hooks_put + arguments_put + tensor_put
    if places != _PLACES(*range(first, first + 7)) or len(key) != int.from_bytes(key_length, "little"):
        return None
    number = short[0] if short else int.from_bytes(long, "little")
    if max(word[0], number, location[0], hooks[0]) >= len(memo):
        return None
    kind, called = memo[number], memo[hooks[0]]
    if type(kind) is not Global or type(called) is not Global or called.name != "collections.OrderedDict":
        return None
    offset, sides, steps = _number(start), _usual_sizes(shape), _usual_sizes(stride)
    if offset < 0 or sides is None or steps is None or len(sides) != len(steps):
        return None
    text = key.decode("ascii")
    storage = persistent((memo[word[0]], kind, text, memo[location[0]], _number(elements)))
    if type(storage) is not StorageRef:
        return None
    return text, INNER, INNER, INNER, INNER, INNER, StoredTensor(storage, storage.dtype, offset, sides, steps)


@lru_cache(maxsize=4096)
def _number(code: bytes) -> int:
    return int.from_bytes(code[1:], "little", signed=code.startswith(b"J"))


@lru_cache(maxsize=4096)
def _usual_sizes(code: bytes) -> tuple[int, ...] | None:
    """Return the numbers of a tuple, or ``None`` if one is negative."""
    numbers = tuple(map(_number, re.findall(_NUMBER, code.removeprefix(b"(")[:-1], re.DOTALL)))
    return numbers if min(numbers) >= 0 else None


# The globals that a torch file may name, and the function that replaces each. torch is never imported.
#
# Source: `torch._utils`, `torch._tensor` and `torch._weights_only_unpickler` of torch 2.13.
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
# The settings of fairseq and OpenNMT: pickled as an instance, whose attributes are dropped.
_NAMESPACE = (_value := _training_value("argparse.Namespace")[1])._replace(instances=_value.make)
_HINT = "load it with torch, make the tensors dense (.to_dense(), .dequantize(), .cpu()) and save it again"

ALLOWED: Globals = {
    **{f"torch.{name}": Global(f"torch.{name}", value=dtype) for name, dtype in DTYPES.items()},
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
    _NAMESPACE.name: _NAMESPACE,
    **{f"torch.{name}Storage": Global(f"torch.{name}Storage") for name in _QUANTISED},
    **{name: Global(name) for name in ("torch.Tensor", PARAMETER)},
    **{name: Global(name, weights_only=False) for name in ("torch._tensor.Tensor", "numpy.ndarray")},
    **{
        f"torch.{name}": Global(f"torch.{name}")
        for name in ("strided", "sparse_coo", "per_tensor_affine", "per_channel_affine")
    },
}
"""The allowed globals by ``module.name``. Any other global is refused."""
