"""What a pickle can hold once nothing of it is called: plain values, and stand-ins for what torch would build."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NoReturn

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
        return next((value for found, value in reversed(self.items) if type(found) is str and found == key), None)


@dataclass(frozen=True, slots=True)
class Opaque:
    """A harmless value that is not looked into, such as a numpy scalar of an optimizer's state."""

    kind: str


@dataclass(frozen=True, slots=True)
class Dtype:
    """A torch dtype: the name that records carry, and the bytes of an element."""

    name: str
    width: int


@dataclass(frozen=True, slots=True)
class StorageRef:
    """A storage that a pickle names: where it is found is the archive's business."""

    key: str
    dtype: Dtype
    numel: int

    @property
    def nbytes(self) -> int:
        return self.numel * self.dtype.width


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A view of a storage; ``offset`` and ``stride`` count elements."""

    storage: StorageRef
    dtype: Dtype
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Global:
    """A name that a pickle imports, and what this program makes of a call to it. Nothing is imported.

    ``value`` stands for a global that is no function: a dtype or a storage class.
    """

    name: str
    make: Callable[[tuple[object, ...]], object] | None = None
    value: object = None


Globals = Mapping[str, Global]
"""The globals that a pickle may name, by ``module.name``."""


def describe(value: object) -> str:
    """The kind of a value, never its content: a nested one would print exponentially long."""
    words: dict[type, str] = {Pairs: "a dictionary", StoredTensor: "a tensor", str: "text", type(None): "None"}
    if isinstance(value, Opaque | Global):
        return shown(value.kind if isinstance(value, Opaque) else value.name)
    return words.get(type(value), f"a {type(value).__name__}")
