"""What a pickle can hold once nothing of it is called: plain values, and stand-ins for what torch would build."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, NoReturn

from tieconv.errors import UnreadableError
from tieconv.text import shown


class PickleProblem(ValueError):
    """A pickle that is not read, and the stable code of the reason; becomes an `UnreadableError` naming the file."""

    def __init__(self, why: str, code: str, hint: str = "") -> None:
        super().__init__(why)
        self.code = code
        self.hint = hint

    def named(self, file: str) -> UnreadableError:
        """The error for the user."""
        hint = self.hint or "save it again with torch.save(model.state_dict(), ...)"
        return UnreadableError(f"{shown(file)} {self}", hint, self.code)


def refuse(why: str, code: str, hint: str = "") -> NoReturn:
    """Raise the `PickleProblem`; ``why`` continues a sentence that starts with the file's name."""
    raise PickleProblem(why, code, hint)


@dataclass(slots=True)
class Pairs:
    """A dictionary as its key-value pairs, in order: keys of a file's choosing are never hashed.

    ``state`` holds the attributes that a BUILD opcode set.
    """

    items: list[tuple[object, object]] = field(default_factory=list)
    state: Pairs | None = None

    def get(self, key: str) -> object:
        """The last value under ``key``, as Python has it; ``None`` where there is none."""
        return next((value for name, value in reversed(self.items) if type(name) is str and name == key), None)


class Opaque(NamedTuple):
    """A harmless value that is not looked into, such as a numpy scalar of an optimizer's state."""

    kind: str


class Dtype(NamedTuple):
    """A torch dtype: the name that records carry, and the bytes of an element."""

    name: str
    width: int


class StorageRef(NamedTuple):
    """A storage that a pickle names: where it is found is the archive's business."""

    key: str
    dtype: Dtype
    numel: int

    @property
    def nbytes(self) -> int:
        return self.numel * self.dtype.width


class StoredTensor(NamedTuple):
    """A view of a storage; ``offset`` and ``stride`` count elements."""

    storage: StorageRef
    dtype: Dtype
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


class Instance:
    """An object that a pickle describes: its class, what that would be called with, its items and its state."""

    __slots__ = ("arguments", "items", "name", "state")

    def __init__(self, name: str, arguments: tuple[object, ...]) -> None:
        self.name = name
        self.arguments = arguments
        self.items: list[tuple[object, object]] = []
        self.state: object = None

    def fields(self) -> dict[str, object]:
        """The attributes of a dataclass."""
        items = self.state.items if isinstance(self.state, Pairs) else []
        return {key: value for key, value in items if type(key) is str}


class Step(NamedTuple):
    """What many opcodes make at once: the offset behind them, and their values, tensors and the names between them."""

    end: int
    values: list[object]


INNER = Opaque("a value inside a tensor")
"""Stands in the memo for a value that a shortcut left out: nothing but the opcodes that it stands for needs one."""
Persistent = Callable[[object], object]
"""Makes a value from a persistent id."""
Shortcut = Callable[[bytes, int, "list[object]", Persistent], "Step | None"]
"""Given the pickle, the offset behind the MARK that opens a call's arguments, and the memo: calls of the usual form."""


class Global(NamedTuple):
    """A name that a pickle imports, and what this program makes of a call to it. Nothing is imported.

    ``value`` stands for a global that is no function: a dtype or a storage class. ``instances`` tells that NEWOBJ
    may be used for the call, ``shortcut`` reads usual calls as a whole, ``weights_only`` that
    ``torch.load(weights_only=True)`` takes the name too.
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
    """The kind of a value, never its content: a nested one would print exponentially long."""
    words: dict[type, str] = {Pairs: "a dictionary", StoredTensor: "a tensor", str: "text", type(None): "None"}
    if isinstance(value, Opaque):
        return shown(value.kind)
    if isinstance(value, Global | Instance):
        return shown(value.name)
    return words.get(type(value), f"a {type(value).__name__}")
