"""Values of a pickle that is never run: basic values, and replacements of the objects that torch would build."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, NoReturn

from tieconv.errors import UnreadableError
from tieconv.text import shown


class PickleProblem(ValueError):
    """A refused pickle, with a stable code. `named` converts it to an `UnreadableError` with the file name."""

    def __init__(self, why: str, code: str, hint: str = "") -> None:
        super().__init__(why)
        self.code = code
        self.hint = hint

    def named(self, file: str) -> UnreadableError:
        """Return the error for the user."""
        hint = self.hint or "save it again with torch.save(model.state_dict(), ...)"
        return UnreadableError(f"{shown(file)} {self}", hint, self.code)


def refuse(why: str, code: str, hint: str = "") -> NoReturn:
    """Raise the `PickleProblem`; ``why`` continues a sentence that starts with the file's name."""
    raise PickleProblem(why, code, hint)


@dataclass(slots=True)
class Pairs:
    """A dictionary as a list of pairs, in order. Keys of a file are never hashed.

    ``state`` holds the attributes that a BUILD opcode set.
    """

    items: list[tuple[object, object]] = field(default_factory=list)
    state: Pairs | None = None

    def get(self, key: str) -> object:
        """Return the last value under ``key``, as Python does, or ``None``."""
        return next((value for name, value in reversed(self.items) if type(name) is str and name == key), None)


class Opaque(NamedTuple):
    """A harmless value that is never inspected, such as a NumPy scalar of an optimizer's state."""

    kind: str


class Dtype(NamedTuple):
    """A torch dtype: its name in records, and the bytes of an element."""

    name: str
    width: int


class StorageRef(NamedTuple):
    """A storage that a pickle refers to. The archive maps its key to bytes."""

    key: str
    dtype: Dtype
    numel: int

    @property
    def nbytes(self) -> int:
        return self.numel * self.dtype.width


class StoredTensor(NamedTuple):
    """A view of a storage. ``offset`` and ``stride`` count elements."""

    storage: StorageRef
    dtype: Dtype
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


class Instance:
    """An object that a pickle describes: its class, arguments, items and state."""

    __slots__ = ("arguments", "items", "name", "state")

    def __init__(self, name: str, arguments: tuple[object, ...]) -> None:
        self.name = name
        self.arguments = arguments
        self.items: list[tuple[object, object]] = []
        self.state: object = None

    def build(self, state: object) -> None:
        """Set the state, as the opcode BUILD does."""
        self.state = state

    def fields(self) -> dict[str, object]:
        """Return the attributes of a dataclass."""
        items = self.state.items if isinstance(self.state, Pairs) else []
        return {key: value for key, value in items if type(key) is str}


class Step(NamedTuple):
    """The result of a shortcut: the offset behind its opcodes, and their values (tensors and the names between)."""

    end: int
    values: list[object]


INNER = Opaque("a value inside a tensor")
"""Marks a memo entry that a shortcut left out."""
Persistent = Callable[[object], object]
"""Converts a persistent id to a value."""
Shortcut = Callable[[bytes, int, "list[object]", Persistent], "Step | None"]
"""Reads usual calls, given the pickle, the offset behind the MARK of a call's arguments, and the memo."""


class Global(NamedTuple):
    """A name that a pickle imports, and the function of tieconv that replaces a call to it. Nothing is imported.

    ``value`` replaces a global that is not a function, such as a dtype or a storage class. ``instances`` allows NEWOBJ
    as the call. ``shortcut`` reads usual calls as a whole. ``weights_only`` is false if
    ``torch.load(weights_only=True)`` refuses the name.
    """

    name: str
    make: Callable[[tuple[object, ...]], object] | None = None
    value: object = None
    instances: bool = False
    shortcut: Shortcut | None = None
    weights_only: bool = True


Globals = Mapping[str, Global]
"""The globals that a pickle may name, by ``module.name``."""


def describe(value: object) -> str:
    """Return the kind of a value, never its content, which could be exponentially long when nested."""
    words: dict[type, str] = {Pairs: "a dictionary", StoredTensor: "a tensor", str: "text", type(None): "None"}
    if isinstance(value, Opaque):
        return shown(value.kind)
    if isinstance(value, Global | Instance):
        return shown(value.name)
    return words.get(type(value), f"a {type(value).__name__}")


# The dtypes of torch, their storage classes, and their names in safetensors.


DTYPES = {
    "bool": Dtype("BOOL", 1), "uint8": Dtype("U8", 1), "int8": Dtype("I8", 1),
    "int16": Dtype("I16", 2), "int32": Dtype("I32", 4), "int64": Dtype("I64", 8),
    "uint16": Dtype("U16", 2), "uint32": Dtype("U32", 4), "uint64": Dtype("U64", 8),
    "float16": Dtype("F16", 2), "bfloat16": Dtype("BF16", 2), "float32": Dtype("F32", 4), "float64": Dtype("F64", 8),
    "complex32": Dtype("C32", 4), "complex64": Dtype("C64", 8), "complex128": Dtype("C128", 16),
    "float8_e4m3fn": Dtype("F8_E4M3", 1), "float8_e4m3fnuz": Dtype("F8_E4M3FNUZ", 1),
    "float8_e5m2": Dtype("F8_E5M2", 1), "float8_e5m2fnuz": Dtype("F8_E5M2FNUZ", 1),
    "float8_e8m0fnu": Dtype("F8_E8M0", 1), "float4_e2m1fn_x2": Dtype("F4_E2M1X2", 1),
}  # fmt: skip
"""The dtypes by torch's name. safetensors has no C32, C128 and F4_E2M1X2, so such tensors are kept as bytes."""

CLASSES = {
    "Bool": "bool", "Byte": "uint8", "Char": "int8", "Short": "int16", "Int": "int32", "Long": "int64",
    "Half": "float16", "BFloat16": "bfloat16", "Float": "float32", "Double": "float64",
    "ComplexFloat": "complex64", "ComplexDouble": "complex128",
}  # fmt: skip
BYTES = Dtype("U8", 1)

TORCH_NAMES = {dtype.name: name for name, dtype in DTYPES.items()}
"""Maps dtype names of records to dtype names of torch."""
STORAGE_CLASSES = {DTYPES[name].name: f"{word}Storage" for word, name in CLASSES.items()}
"""Maps dtype names of records to torch's storage classes, if the dtype has one."""
WIDTHS = {dtype.name: dtype.width for dtype in DTYPES.values()}
"""Maps dtype names of records to bytes of an element."""
