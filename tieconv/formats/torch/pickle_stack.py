"""Values of a pickle that is never run: basic values, and replacements of the objects that torch would build."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, NoReturn, TypeGuard

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


LIMIT = 1 << 63


def natural(value: object) -> TypeGuard[int]:
    """Return whether a value is an integer from 0 to 2**63 - 1, and not a bool."""
    return type(value) is int and 0 <= value < LIMIT


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

    ``value`` replaces a global that is not a function, such as a dtype or a storage class. ``instances`` replaces a
    call by NEWOBJ. ``shortcut`` reads usual calls as a whole. ``weights_only`` is false if
    ``torch.load(weights_only=True)`` refuses the name.
    """

    name: str
    make: Callable[[tuple[object, ...]], object] | None = None
    value: object = None
    instances: Callable[[tuple[object, ...]], object] | None = None
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


# The state of the pickle interpreter: its stack, memo and limits. `tieconv.formats.torch.pickle_machine` runs it.

MAX_STACK = 1 << 17
"""The most values on the stack. Picklers write items in batches of a thousand, except the items of a tuple."""
MAX_NESTED = 100
"""The most levels of values. Python frees a value with its parts; some thousand levels end it in a browser."""
MAX_SCATTERED = 100_000
"""The most memo entries out of order. Picklers number them 0, 1, 2 …; Python 2 starts at 1."""
MAX_INTEGER = 255
"""The most bytes of an integer, which is the limit of LONG1."""
MAX_LINE = 512
"""The most bytes of a text argument, such as a global's name or a decimal number."""
OPCODES = 1_000_000
"""Opcodes that every pickle may have. They run in a fifth of a second and describe 30,000 views of one storage."""
OPCODES_EACH = 64
"""Further opcodes for each storage. A tensor needs about 32."""
BYTES_EACH = 64
"""Each 64 bytes of the file allow one more opcode, because lists of numbers grow with the data."""
PROTOCOLS = range(6)
_BATCH = 4096
"""Opcodes between two checks of the limits. Each pushes at most one value."""
SHORTCUT = 32
"""Opcodes that a shortcut replaces."""

HINT = (
    "tieconv reads only tensors in dictionaries. If you trust the file, load it with torch and save model.state_dict()"
)


class Truncated(Exception):
    """Raised if the pickle continues behind the given bytes."""


class Inside(Exception):
    """Raised if the pickle recalls a value that a shortcut left out."""


def allowance(length: int, storages: int) -> int:
    """Return the most opcodes of a pickle in a file of ``length`` bytes with ``storages`` storages.

    Without this limit, a file that holds nothing but a pickle could keep the reader busy for a long time. More opcodes
    need more storages or more data.
    """
    return OPCODES + OPCODES_EACH * storages + length // BYTES_EACH


class Machine:
    """The state of a run. ``stack`` holds the values above the last MARK; ``outer`` holds the stacks below it."""

    __slots__ = (
        "allowed", "below", "charged", "data", "heights", "late", "memo", "most", "outer", "persistent", "position",
        "scattered", "shortcuts", "stack", "unsupported",
    )  # fmt: skip

    def __init__(
        self,
        data: bytes,
        start: int,
        allowed: Globals,
        persistent: Persistent,
        most: Callable[[], int],
        *,
        shortcuts: bool = True,
    ) -> None:
        self.data = data
        self.position = start
        self.allowed = allowed
        self.persistent = persistent
        self.most = most
        self.shortcuts = shortcuts
        self.charged = 0
        self.stack: list[object] = []
        self.outer: list[list[object]] = []
        self.below = 0  # values in the outer stacks, and the MARKs
        self.heights: dict[int, int] = {}  # levels of each container by its id, negative if another one holds it
        self.late = 0  # levels that containers grew by after others held them
        self.memo: list[object] = []
        self.scattered: dict[int, object] = {}
        self.unsupported: dict[int | str, None] = {}
        """Opcodes and globals that ``torch.load(weights_only=True)`` refuses, in the order of first use."""

    def run(self, handlers: Handlers) -> tuple[object, int]:
        """Return the value of the pickle and the offset behind the pickle."""
        try:
            while not self._some(handlers):
                self.charge(_BATCH)
        except struct.error:
            raise Truncated from None
        except IndexError:  # of the data, or of the stack
            if self.position >= len(self.data):
                raise Truncated from None
            underflow()
        if len(self.stack) != 1 or self.outer:
            refuse("holds a pickle that does not end with exactly one value", "pickle.malformed")
        return self.stack[0], self.position

    def _some(self, handlers: Handlers) -> bool:
        """Run the next opcodes, and return whether STOP was reached."""
        data = self.data
        for _ in range(_BATCH):
            opcode = data[self.position]
            self.position += 1
            handler = handlers[opcode]
            if handler is None:
                if opcode != _STOP:
                    refuse_opcode(opcode)
                return True
            handler(self)
        return False

    def charge(self, opcodes: int) -> None:
        """Count ``opcodes`` and check the limits."""
        if len(self.stack) + self.below > MAX_STACK:
            refuse(f"puts more than {MAX_STACK:,} values on the stack", "pickle.stack")
        self.charged += opcodes
        if self.charged > self.most():
            refuse("has a pickle with more opcodes than its tensors need", "pickle.opcodes")

    def nest(self, container: object, parts: Iterable[object], *, grown: bool = False) -> object:
        """Return a new or ``grown`` container of ``parts``. Refuses too many levels."""
        before = self.heights.get(id(container), 1) if grown else 1
        height = abs(before)
        for part in parts:
            if type(part) not in _FLAT:
                inner = abs(self.heights.get(id(part), 1))
                self.heights[id(part)] = -inner
                height = max(height, inner + 1)
        if before < 0:
            self.late, height = self.late + height + before, -height
        self.heights[id(container)] = height
        if abs(height) + self.late > MAX_NESTED:
            refuse(f"nests values more than {MAX_NESTED} levels deep", "pickle.stack")
        return container

    # --- arguments ------------------------------------------------------------------------------------------

    def take(self, size: int) -> bytes:
        """Return the next ``size`` bytes. Never allocates more than the pickle holds."""
        start = self.position
        self.position = end = start + size
        if end > len(self.data):
            raise Truncated
        return self.data[start:end]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "little")

    def byte(self) -> int:
        value = self.data[self.position]
        self.position += 1
        return value

    def line(self) -> bytes:
        end = self.data.find(b"\n", self.position, self.position + MAX_LINE + 1)
        if end < 0:
            if self.position + MAX_LINE < len(self.data):
                refuse(f"has a line of more than {MAX_LINE} bytes", "pickle.line")
            raise Truncated
        line = self.data[self.position : end]
        self.position = end + 1
        return line

    # --- stack and memo -------------------------------------------------------------------------------------

    def pop_marked(self) -> list[object]:
        """Return the values above the last MARK, and remove the MARK."""
        if not self.outer:
            refuse("closes a group that it never opened", "pickle.malformed")
        values = self.stack
        self.stack = stack = self.outer.pop()
        self.below -= len(stack) + 1
        return values

    def remember(self, number: int) -> None:
        memo, value = self.memo, self.stack[-1]
        if number == len(memo):
            memo.append(value)
            if self.scattered:
                self.scattered.pop(number, None)
        elif number < len(memo):
            memo[number] = value
        else:
            self._scatter(number, value)

    def _scatter(self, number: int, value: object) -> None:
        if number == 1 and not self.memo:
            self.memo = [_NEVER, value]
            return
        if len(self.scattered) >= MAX_SCATTERED and number not in self.scattered:
            refuse(f"remembers more than {MAX_SCATTERED:,} values out of order", "pickle.memo")
        self.scattered[number] = value

    @property
    def remembered(self) -> int:
        """The number of memo entries."""
        return len(self.memo) - (self.memo[:1] == [_NEVER]) + len(self.scattered)

    def recall(self, number: int) -> None:
        value = self.memo[number] if number < len(self.memo) else self.scattered.get(number, _NEVER)
        if value is _NEVER:
            refuse("recalls a value that it never stored", "pickle.malformed")
        if value is INNER:
            raise Inside
        self.stack.append(value)


Opcodes = dict[bytes, Callable[[Machine], object]]
"""Maps opcodes to their handlers."""
Handlers = Sequence[Callable[[Machine], object] | None]
"""The handler of each opcode by its byte. ``None`` for STOP and for opcodes that are refused."""
_NEVER = object()
_FLAT = frozenset({str, int, float, bool, bytes, type(None), StoredTensor, StorageRef, Global, Opaque})
_STOP = ord(".")


_WEIGHTS_ONLY = frozenset(b"c\x81Rbaesu(t\x85\x86\x87N\x88\x89)]}\x8fJKMGXUQhjqr\x8a\x80.")
"""The opcodes that ``torch.load(weights_only=True)`` of torch 2.13 reads. Source: `torch._weights_only_unpickler`."""


def noting(opcode: int, handler: Callable[[Machine], object]) -> Callable[[Machine], object]:
    """Return ``handler``, extended to record its opcode if ``torch.load(weights_only=True)`` refuses the opcode."""
    if opcode in _WEIGHTS_ONLY:
        return handler

    def noted(machine: Machine) -> None:
        machine.unsupported[opcode] = None
        handler(machine)

    return noted


def refuse_opcode(opcode: int) -> NoReturn:
    """Raise the `PickleProblem` of a refused opcode."""
    refuse(f"uses the pickle opcode {opcode_name(opcode)}, which tieconv does not read", "pickle.opcode", HINT)


def underflow() -> NoReturn:
    """Raise the `PickleProblem` of a stack with too few values."""
    refuse("takes more values from the stack than there are", "pickle.malformed")


# Names of pickle opcodes for messages. A copy, because `pickletools` imports the `pickle` module.

_NAMES = """
    28:MARK 29:EMPTY_TUPLE 2e:STOP 30:POP 31:POP_MARK 32:DUP 42:BINBYTES 43:SHORT_BINBYTES 46:FLOAT 47:BINFLOAT
    49:INT 4a:BININT 4b:BININT1 4c:LONG 4d:BININT2 4e:NONE 50:PERSID 51:BINPERSID 52:REDUCE 53:STRING 54:BINSTRING
    55:SHORT_BINSTRING 56:UNICODE 58:BINUNICODE 5d:EMPTY_LIST 61:APPEND 62:BUILD 63:GLOBAL 64:DICT 65:APPENDS 67:GET
    68:BINGET 69:INST 6a:LONG_BINGET 6c:LIST 6f:OBJ 70:PUT 71:BINPUT 72:LONG_BINPUT 73:SETITEM 74:TUPLE 75:SETITEMS
    7d:EMPTY_DICT 80:PROTO 81:NEWOBJ 82:EXT1 83:EXT2 84:EXT4 85:TUPLE1 86:TUPLE2 87:TUPLE3 88:NEWTRUE 89:NEWFALSE
    8a:LONG1 8b:LONG4 8c:SHORT_BINUNICODE 8d:BINUNICODE8 8e:BINBYTES8 8f:EMPTY_SET 90:ADDITEMS 91:FROZENSET
    92:NEWOBJ_EX 93:STACK_GLOBAL 94:MEMOIZE 95:FRAME 96:BYTEARRAY8 97:NEXT_BUFFER 98:READONLY_BUFFER
"""
"""The byte of each opcode and its name in `pickletools`."""


def opcode_name(opcode: int) -> str:
    """Return the name of an opcode, or its number if no protocol has it."""
    number = f"{opcode:02x}"
    names = dict(word.split(":") for word in _NAMES.split())
    return names.get(number, f"0x{number}")
