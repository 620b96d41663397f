"""The `.metadata` of a torch distributed checkpoint, walked opcode by opcode: data in, data out.

Nothing that the file names is imported or called: a class or function becomes a `Node` that holds its name, its
arguments and its state, and only names of an allow-list may stand there at all.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from dataclasses import dataclass, field

from tieconv.errors import UnreadableError
from tieconv.text import shown

LIMIT = 100_000_000
"""The largest metadata in bytes."""

_DCP = "torch.distributed.checkpoint"
_TYPES = (
    "float64 float32 float16 bfloat16 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu "
    "int64 int32 int16 int8 uint64 uint32 uint16 uint8 bool complex64 complex128 strided Size device"
)
ALLOWED = frozenset(
    [("torch", name) for name in _TYPES.split()]
    + [
        (f"{_DCP}.metadata", "Metadata"),
        (f"{_DCP}.metadata", "TensorStorageMetadata"),
        (f"{_DCP}.metadata", "BytesStorageMetadata"),
        (f"{_DCP}.metadata", "ChunkStorageMetadata"),
        (f"{_DCP}.metadata", "TensorProperties"),
        (f"{_DCP}.metadata", "MetadataIndex"),
        (f"{_DCP}.metadata", "StorageMeta"),
        (f"{_DCP}.metadata", "_MEM_FORMAT_ENCODING"),
        (f"{_DCP}.filesystem", "_StorageInfo"),
        (f"{_DCP}.filesystem", "_StoragePrefix"),
        ("torch.serialization", "_get_layout"),
        ("pathlib", "PosixPath"),
        ("pathlib", "PurePosixPath"),
        ("pathlib", "WindowsPath"),
        ("pathlib", "PureWindowsPath"),
        ("pathlib._local", "PosixPath"),
        ("pathlib._local", "WindowsPath"),
        ("collections", "OrderedDict"),
        ("collections", "defaultdict"),
        ("builtins", "set"),
        ("builtins", "dict"),
        ("builtins", "list"),
        ("builtins", "frozenset"),
    ]
)
"""What `torch.distributed.checkpoint.save` writes for models, optimizers and counters."""


class Pairs(list["tuple[object, object]"]):
    """A dict of the file, in its order; keys need not be hashable."""

    def texts(self) -> dict[str, object]:
        """The entries with a string for a key."""
        return {key: value for key, value in self if isinstance(key, str)}


@dataclass(eq=False, slots=True)
class Node:
    """Something that the file names: a class or function, what it would be called with, and its state."""

    name: str
    arguments: object = ()
    state: object = None
    entries: Pairs = field(default_factory=Pairs)

    def fields(self) -> dict[str, object]:
        """The state of a dataclass."""
        return self.state.texts() if isinstance(self.state, Pairs) else {}


class _Malformed(ValueError):
    """A pickle that no `torch.distributed.checkpoint.save` writes."""


_MARK = object()


def parse(data: bytes, name: str) -> object:
    """The value of the pickle in ``data`` as plain data and `Node`s.

    Raises `UnreadableError` for a name off the allow-list, an opcode off the list below, or a malformed stream.
    """
    if len(data) > LIMIT:
        raise UnreadableError(f"{shown(name)} takes more than {LIMIT:,} bytes", "", "dcp.too-large")
    machine = _Machine(name)
    try:
        for opcode, argument, _ in pickletools.genops(data):
            if opcode.name == "STOP":
                return machine.pop()
            machine.step(opcode.name, argument)
    except (_Malformed, ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise UnreadableError(
            f"{shown(name)} is no metadata of a distributed checkpoint: {shown(error)}",
            "save the checkpoint again",
            "dcp.malformed",
        ) from error
    raise UnreadableError(f"{shown(name)} ends too early", "save the checkpoint again", "dcp.malformed")


class _Machine:
    """The pickle machine without any way to call."""

    def __init__(self, name: str) -> None:
        self._file = name
        self._stack: list[object] = []
        self._memo: dict[int, object] = {}

    def pop(self) -> object:
        return self._stack.pop()

    def step(self, opcode: str, argument: object) -> None:
        """One opcode."""
        if opcode in _LITERALS:
            self._stack.append(argument)
        elif opcode in _CONSTANTS:
            self._stack.append(_CONSTANTS[opcode]())
        elif opcode in _TUPLES:
            items = [self.pop() for _ in range(_TUPLES[opcode])]
            self._stack.append(tuple(reversed(items)))
        elif opcode not in _IGNORED:
            self._act(opcode, argument)

    def _act(self, opcode: str, argument: object) -> None:
        match opcode:
            case "MARK":
                self._stack.append(_MARK)
            case "TUPLE":
                self._stack.append(tuple(self._marked()))
            case "MEMOIZE":
                self._memo[len(self._memo)] = self._stack[-1]
            case "BINPUT" | "LONG_BINPUT":
                self._memo[_number(argument)] = self._stack[-1]
            case "BINGET" | "LONG_BINGET":
                self._stack.append(self._memo[_number(argument)])
            case "GLOBAL":
                module, _, attribute = str(argument).partition(" ")
                self._stack.append(self._named(module, attribute))
            case "STACK_GLOBAL":
                last, first = self.pop(), self.pop()
                self._stack.append(self._named(str(first), str(last)))
            case _:
                self._combine(opcode)

    def _combine(self, opcode: str) -> None:
        match opcode:
            case "REDUCE" | "NEWOBJ":
                arguments, callee = self.pop(), self.pop()
                self._stack.append(Node(_node(callee).name, arguments))
            case "BUILD":
                state = self.pop()
                _node(self._stack[-1]).state = state
            case "APPEND":
                item = self.pop()
                self._extend([item])
            case "APPENDS" | "ADDITEMS":
                self._extend(self._marked())
            case "SETITEM":
                value, key = self.pop(), self.pop()
                self._set([key, value])
            case "SETITEMS":
                self._set(self._marked())
            case _:
                raise _Malformed(f"the opcode {opcode}")

    def _named(self, module: str, attribute: str) -> Node:
        if (module, attribute) in ALLOWED:
            return Node(f"{module}.{attribute}")
        raise UnreadableError(
            f"{shown(self._file)} names {shown(module)}.{shown(attribute)}, which no distributed checkpoint needs",
            "nothing of it was run; do not load this checkpoint with torch unless you trust it",
            "dcp.global",
        )

    def _marked(self) -> list[object]:
        for place in range(len(self._stack) - 1, -1, -1):
            if self._stack[place] is _MARK:
                items = self._stack[place + 1 :]
                del self._stack[place:]
                return items
        raise _Malformed("a MARK is missing")

    def _extend(self, items: list[object]) -> None:
        target = self._stack[-1]
        if isinstance(target, Pairs) or not isinstance(target, list):
            raise _Malformed("items without a list")
        target.extend(items)

    def _set(self, items: list[object]) -> None:
        target = self._stack[-1]
        pairs = target.entries if isinstance(target, Node) else target
        if not isinstance(pairs, Pairs) or len(items) % 2:
            raise _Malformed("entries without a dict")
        pairs.extend(zip(items[::2], items[1::2], strict=True))


def _node(value: object) -> Node:
    if not isinstance(value, Node):
        raise _Malformed("a call of what is no name")
    return value


def _number(value: object) -> int:
    if not isinstance(value, int):
        raise _Malformed("a memo without a number")
    return value


_LITERALS = frozenset(
    (
        "SHORT_BINUNICODE",
        "BINUNICODE",
        "BINUNICODE8",
        "BININT",
        "BININT1",
        "BININT2",
        "LONG1",
        "LONG4",
        "BINFLOAT",
        "SHORT_BINBYTES",
        "BINBYTES",
    )
)
_CONSTANTS: dict[str, Callable[[], object]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_TUPLE": tuple,
    "EMPTY_LIST": list,
    "EMPTY_SET": list,
    "EMPTY_DICT": Pairs,
}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_IGNORED = frozenset({"PROTO", "FRAME"})
