"""A pickle interpreter that cannot run anything.

Every opcode makes a plain value or one of the stand-ins of `pickle_values`. A global is a name in an allow-list,
REDUCE hands its arguments to a function of this program, and opcodes that would create or call anything else are
refused. Stack, memo, marks and numbers are bounded; memory grows with the bytes of the pickle alone.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import NoReturn

from tieconv.formats.pickle_values import Global, Globals, Opaque, Pairs, describe, refuse
from tieconv.text import shown

MAX_STACK = 1_000_000
MAX_MARKS = 10_000
MAX_MEMO = 4_000_000
MAX_INTEGER = 255
"""Bytes of an integer: LONG1 can hold no more."""
MAX_LINE = 512
"""Bytes of a text argument: a global's name, a decimal number."""
PROTOCOLS = range(6)
_BATCH = 4096
"""Opcodes between two looks at the size of the stack: each pushes one value at most."""

_MARK = object()
_HINT = (
    "only tensors in dictionaries are read; if you trust the file and it holds a whole model or a training run, "
    "load it with torch and save model.state_dict()"
)


class Truncated(Exception):
    """The pickle goes on behind the bytes that are given."""


def run(data: bytes, start: int, allowed: Globals, persistent: Callable[[object], object]) -> tuple[object, int]:
    """The value of the pickle at ``start`` of ``data``, and the offset behind it.

    ``persistent`` makes a value from a persistent id. Raises `PickleProblem` for a pickle that is not read, and
    `Truncated` where ``data`` ends inside of it.
    """
    return _Machine(data, start, allowed, persistent).run()


class _Machine:
    def __init__(self, data: bytes, start: int, allowed: Globals, persistent: Callable[[object], object]) -> None:
        self.data = data
        self.position = start
        self.allowed = allowed
        self.persistent = persistent
        self.stack: list[object] = []
        self.marks: list[int] = []
        self.memo: dict[int, object] = {}

    def run(self) -> tuple[object, int]:
        while not self._some():
            if len(self.stack) > MAX_STACK:
                refuse(f"piles up more than {MAX_STACK:,} values", "pickle.stack")
        if len(self.stack) != 1 or self.marks:
            refuse("holds a pickle that ends with other than one value", "pickle.malformed")
        return self.stack[0], self.position

    def _some(self) -> bool:
        """Carry out the next opcodes; true once STOP is reached."""
        data, size, handlers = self.data, len(self.data), _HANDLERS
        for _ in range(_BATCH):
            position = self.position
            if position >= size:
                raise Truncated
            opcode = data[position]
            self.position = position + 1
            if opcode == _STOP:
                return True
            handler = handlers[opcode]
            if handler is None:
                refuse(f"uses the pickle opcode {_name(opcode)}, which is not read", "pickle.opcode", _HINT)
            handler(self)
        return False

    # --- arguments ------------------------------------------------------------------------------------------

    def take(self, size: int) -> bytes:
        """The next ``size`` bytes. Only as much is allocated as is there."""
        end = self.position + size
        if end > len(self.data):
            raise Truncated
        piece = self.data[self.position : end]
        self.position = end
        return piece

    def number(self, size: int) -> int:
        start = self.position
        self.position = end = start + size
        if end > len(self.data):
            raise Truncated
        return self.data[start] if size == 1 else int.from_bytes(self.data[start:end], "little")

    def line(self) -> bytes:
        end = self.data.find(b"\n", self.position, self.position + MAX_LINE + 1)
        if end < 0:
            if self.position + MAX_LINE < len(self.data):
                refuse(f"has a line of more than {MAX_LINE} bytes", "pickle.line")
            raise Truncated
        line = self.data[self.position : end]
        self.position = end + 1
        return line

    # --- the stack ------------------------------------------------------------------------------------------

    def pop(self) -> object:
        stack = self.stack
        if not stack or (self.marks and self.marks[-1] == len(stack)):
            self.underflow()
        return stack.pop()

    def top(self) -> object:
        stack = self.stack
        if not stack or (self.marks and self.marks[-1] == len(stack)):
            self.underflow()
        return stack[-1]

    def underflow(self) -> NoReturn:
        refuse("takes more values than it has", "pickle.malformed")

    def pop_marked(self) -> list[object]:
        if not self.marks:
            refuse("closes a group that it never opened", "pickle.malformed")
        start = self.marks.pop()
        values = self.stack[start:]
        del self.stack[start:]
        return values

    def remember(self, place: int) -> None:
        memo = self.memo
        if len(memo) >= MAX_MEMO and place not in memo:
            refuse(f"remembers more than {MAX_MEMO:,} values", "pickle.memo")
        memo[place] = self.top()

    def recall(self, place: int) -> None:
        if place not in self.memo:
            refuse("recalls a value that it never stored", "pickle.malformed")
        self.stack.append(self.memo[place])


# --- plain values -------------------------------------------------------------------------------------------


def _push(value: object) -> Callable[[_Machine], None]:
    return lambda machine: machine.stack.append(value)


def _unsigned(size: int) -> Callable[[_Machine], None]:
    return lambda machine: machine.stack.append(machine.number(size))


def _signed(machine: _Machine) -> None:
    machine.stack.append(int.from_bytes(machine.take(4), "little", signed=True))


def _long(size: int) -> Callable[[_Machine], None]:
    def push(machine: _Machine) -> None:
        length = machine.number(size)
        if length > MAX_INTEGER:
            refuse(f"holds an integer of {length:,} bytes", "pickle.integer")
        machine.stack.append(int.from_bytes(machine.take(length), "little", signed=True))

    return push


_DECIMAL = re.compile(rb"-?[0-9]{1,320}")


def _decimal(machine: _Machine) -> None:
    line = machine.line()
    if line in (b"00", b"01"):
        machine.stack.append(line == b"01")
        return
    digits = line.removesuffix(b"L")
    if not _DECIMAL.fullmatch(digits):
        refuse("holds a line that is no number", "pickle.malformed")
    machine.stack.append(int(digits))


def _float_line(machine: _Machine) -> None:
    try:
        machine.stack.append(float(machine.line()))
    except ValueError:
        refuse("holds a line that is no number", "pickle.malformed")


def _float(machine: _Machine) -> None:
    machine.stack.append(struct.unpack(">d", machine.take(8))[0])


def _text(size: int) -> Callable[[_Machine], None]:
    def push(machine: _Machine) -> None:
        raw = machine.take(machine.number(size))
        try:
            machine.stack.append(raw.decode("utf-8", "surrogatepass"))
        except UnicodeDecodeError:
            refuse("holds text that is no UTF-8", "pickle.malformed")

    return push


def _bytes(size: int) -> Callable[[_Machine], None]:
    return lambda machine: machine.stack.append(machine.take(machine.number(size)))


def _escaped(machine: _Machine) -> None:
    try:
        machine.stack.append(machine.line().decode("raw-unicode-escape"))
    except UnicodeDecodeError:
        refuse("holds text that cannot be decoded", "pickle.malformed")


# --- containers ---------------------------------------------------------------------------------------------


def _mark(machine: _Machine) -> None:
    if len(machine.marks) >= MAX_MARKS:
        refuse(f"nests more than {MAX_MARKS:,} groups", "pickle.stack")
    machine.marks.append(len(machine.stack))


def _tuple(length: int) -> Callable[[_Machine], None]:
    def push(machine: _Machine) -> None:
        stack, marks = machine.stack, machine.marks
        if len(stack) - (marks[-1] if marks else 0) < length:
            machine.underflow()
        values = tuple(stack[-length:])
        del stack[-length:]
        stack.append(values)

    return push


def _tuple_marked(machine: _Machine) -> None:
    values = machine.pop_marked()
    machine.stack.append(tuple(values))


def _list_marked(machine: _Machine) -> None:
    values = machine.pop_marked()
    machine.stack.append(values)


def _dict_marked(machine: _Machine) -> None:
    values = machine.pop_marked()
    machine.stack.append(Pairs(_paired(values)))


def _paired(values: list[object]) -> list[tuple[object, object]]:
    if len(values) % 2:
        refuse("holds a key without a value", "pickle.malformed")
    return list(zip(values[::2], values[1::2], strict=True))


def _append(machine: _Machine) -> None:
    value = machine.pop()
    _listed(machine.top()).append(value)


def _appends(machine: _Machine) -> None:
    values = machine.pop_marked()
    _listed(machine.top()).extend(values)


def _listed(value: object) -> list[object]:
    if not isinstance(value, list):
        refuse(f"adds items to {describe(value)}", "pickle.append")
    return value


def _setitem(machine: _Machine) -> None:
    value, key = machine.pop(), machine.pop()
    _mapped(machine.top()).items.append((key, value))


def _setitems(machine: _Machine) -> None:
    values = machine.pop_marked()
    _mapped(machine.top()).items.extend(_paired(values))


def _mapped(value: object) -> Pairs:
    if not isinstance(value, Pairs):
        refuse(f"sets a key of {describe(value)}", "pickle.setitem")
    return value


def _additems(machine: _Machine) -> None:
    machine.pop_marked()
    if not isinstance(machine.top(), Opaque):
        refuse(f"adds items to {describe(machine.top())}", "pickle.append")


def _frozenset(machine: _Machine) -> None:
    machine.pop_marked()
    machine.stack.append(Opaque("a set"))


# --- stack and memo -----------------------------------------------------------------------------------------


def _pop(machine: _Machine) -> None:
    if machine.marks and machine.marks[-1] == len(machine.stack):
        machine.marks.pop()
    else:
        machine.pop()


def _pop_mark(machine: _Machine) -> None:
    machine.pop_marked()


def _duplicate(machine: _Machine) -> None:
    machine.stack.append(machine.top())


def _put(size: int) -> Callable[[_Machine], None]:
    return lambda machine: machine.remember(machine.number(size))


def _get(size: int) -> Callable[[_Machine], None]:
    return lambda machine: machine.recall(machine.number(size))


def _memoize(machine: _Machine) -> None:
    machine.remember(len(machine.memo))


def _place(machine: _Machine) -> int:
    line = machine.line()
    if not re.fullmatch(rb"[0-9]{1,10}", line):
        refuse("holds a line that is no memo place", "pickle.malformed")
    return int(line)


def _put_line(machine: _Machine) -> None:
    machine.remember(_place(machine))


def _get_line(machine: _Machine) -> None:
    machine.recall(_place(machine))


def _protocol(machine: _Machine) -> None:
    version = machine.number(1)
    if version not in PROTOCOLS:
        refuse(f"is written in pickle protocol {version}, which is not known", "pickle.protocol")


def _frame(machine: _Machine) -> None:
    """Frames are a hint to readers of streams; what counts is that the bytes are there when they are taken."""
    machine.number(8)


# --- names, calls and state ---------------------------------------------------------------------------------


def _global(machine: _Machine) -> None:
    machine.stack.append(_find(machine, *_named(machine)))


def _named(machine: _Machine) -> tuple[str, str]:
    try:
        return machine.line().decode("utf-8"), machine.line().decode("utf-8")
    except UnicodeDecodeError:
        refuse("names a global that is no text", "pickle.malformed")


def _global_on_stack(machine: _Machine) -> None:
    name, module = machine.pop(), machine.pop()
    if type(name) is not str or type(module) is not str:
        refuse("names a global by other than text", "pickle.malformed")
    machine.stack.append(_find(machine, module, name))


def _find(machine: _Machine, module: str, name: str) -> Global:
    """The stand-in for a global. A dotted ``name`` would be a chain of attributes: it is in no allow-list."""
    found = machine.allowed.get(f"{module}.{name}") if "." not in name else None
    if found is None:
        _refuse_global(module, name)
    return found


def _refuse_global(module: str, name: str) -> NoReturn:
    # Only this knows where a pickle of Python 2 would end up; both names are worth showing as they stand.
    what = f"{shown(module, 100)}.{shown(name, 100)}"
    refuse(f"asks to import {what}: refused; nothing was run", "pickle.global", _HINT)


def _instance(machine: _Machine) -> None:
    """INST imports and calls: a name that is not allowed is said first."""
    found = _find(machine, *_named(machine))
    refuse(f"makes an instance of {describe(found)} by an opcode that is not read", "pickle.opcode", _HINT)


def _reduce(machine: _Machine) -> None:
    arguments, function = machine.pop(), machine.pop()
    if not isinstance(function, Global) or function.make is None:
        refuse(f"calls {describe(function)}, which is no function that may be called", "pickle.call", _HINT)
    if type(arguments) is not tuple:
        refuse(f"calls {describe(function)} with {describe(arguments)} for arguments", "pickle.malformed")
    machine.stack.append(function.make(arguments))


def _build(machine: _Machine) -> None:
    """Attributes: a dictionary keeps them apart from its items, an opaque value loses them."""
    state, target = machine.pop(), machine.top()
    if isinstance(target, Opaque):
        return
    if not isinstance(target, Pairs) or not isinstance(state, Pairs) or target.state is not None:
        refuse(f"sets attributes of {describe(target)} to {describe(state)}", "pickle.build", _HINT)
    target.state = state


def _persistent(machine: _Machine) -> None:
    machine.stack.append(machine.persistent(machine.pop()))


_STOP = ord(".")
_TABLE: dict[bytes, Callable[[_Machine], None]] = {
    b"(": _mark, b"0": _pop, b"1": _pop_mark, b"2": _duplicate,
    b"F": _float_line, b"G": _float, b"I": _decimal, b"L": _decimal,
    b"J": _signed, b"K": _unsigned(1), b"M": _unsigned(2), b"\x8a": _long(1), b"\x8b": _long(4),
    b"N": _push(None), b"\x88": _push(True), b"\x89": _push(False),
    b"V": _escaped, b"X": _text(4), b"\x8c": _text(1), b"\x8d": _text(8), b"T": _text(4), b"U": _text(1),
    b"B": _bytes(4), b"C": _bytes(1), b"\x8e": _bytes(8), b"\x96": _bytes(8),
    b"]": lambda machine: machine.stack.append([]), b"}": lambda machine: machine.stack.append(Pairs()),
    b")": _push(()), b"\x8f": _push(Opaque("a set")),
    b"t": _tuple_marked, b"\x85": _tuple(1), b"\x86": _tuple(2), b"\x87": _tuple(3),
    b"l": _list_marked, b"d": _dict_marked, b"a": _append, b"e": _appends, b"s": _setitem, b"u": _setitems,
    b"\x90": _additems, b"\x91": _frozenset,
    b"p": _put_line, b"q": _put(1), b"r": _put(4), b"\x94": _memoize, b"g": _get_line, b"h": _get(1), b"j": _get(4),
    b"\x80": _protocol, b"\x95": _frame,
    b"c": _global, b"\x93": _global_on_stack, b"i": _instance, b"R": _reduce, b"b": _build, b"Q": _persistent,
}  # fmt: skip
_HANDLERS = [_TABLE.get(bytes([code])) for code in range(256)]
_REFUSED = {
    b"o": "OBJ", b"\x81": "NEWOBJ", b"\x92": "NEWOBJ_EX", b"\x82": "EXT1", b"\x83": "EXT2", b"\x84": "EXT4",
    b"P": "PERSID", b"S": "STRING", b"\x97": "NEXT_BUFFER", b"\x98": "READONLY_BUFFER",
}  # fmt: skip


def _name(opcode: int) -> str:
    return _REFUSED.get(bytes([opcode]), f"0x{opcode:02x}")
