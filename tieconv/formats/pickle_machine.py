"""A pickle interpreter that cannot run anything.

Every opcode makes a plain value or one of the stand-ins of `pickle_values`. A global is a name in an allow-list,
REDUCE hands its arguments to a function of this program, and opcodes that would create or call anything else are
refused. Opcodes, stack, memo, marks and numbers are bounded; memory grows with the bytes of the pickle alone.

A global may have a shortcut, which reads a usual call of it in one go: a torch file repeats the same thirty opcodes
for each tensor. It gives what the opcodes one by one would give, but for the values inside of the call: should a
pickle recall one of them, it is read again without shortcuts.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import NoReturn

from tieconv.formats.pickle_state import (
    HINT,
    MAX_INTEGER,
    MAX_MARKS,
    PROTOCOLS,
    SHORTCUT,
    Handlers,
    Inside,
    Machine,
    refuse_opcode,
    underflow,
)
from tieconv.formats.pickle_values import (
    Global,
    Globals,
    Instance,
    Opaque,
    Pairs,
    Persistent,
    Shortcut,
    describe,
    refuse,
)
from tieconv.text import shown


def run(
    data: bytes, start: int, allowed: Globals, persistent: Persistent, most: Callable[[], int]
) -> tuple[object, int]:
    """The value of the pickle at ``start`` of ``data``, and the offset behind it.

    ``persistent`` makes a value from a persistent id; ``most`` tells how many opcodes may be carried out, and is
    asked now and then. Raises `PickleProblem` for a pickle that is not read, and `Truncated` where ``data`` ends
    inside of it.
    """
    try:
        return Machine(data, start, allowed, persistent, most).run(_HANDLERS)
    except Inside:
        return Machine(data, start, allowed, persistent, most, shortcuts=False).run(_HANDLERS)


_U32 = struct.Struct("<I").unpack_from


# --- plain values -------------------------------------------------------------------------------------------


def _push(value: object) -> Callable[[Machine], None]:
    return lambda machine: machine.stack.append(value)


def _unsigned_byte(machine: Machine) -> None:
    machine.stack.append(machine.byte())


def _unsigned_word(machine: Machine) -> None:
    machine.stack.append(machine.number(2))


def _signed(machine: Machine) -> None:
    machine.stack.append(int.from_bytes(machine.take(4), "little", signed=True))


def _long(size: int) -> Callable[[Machine], None]:
    def push(machine: Machine) -> None:
        length = machine.number(size)
        if length > MAX_INTEGER:
            refuse(f"holds an integer of {length:,} bytes", "pickle.integer")
        machine.stack.append(int.from_bytes(machine.take(length), "little", signed=True))

    return push


_DECIMAL = re.compile(rb"-?[0-9]{1,320}")


def _decimal(machine: Machine) -> None:
    line = machine.line()
    if line in (b"00", b"01"):
        machine.stack.append(line == b"01")
        return
    digits = line.removesuffix(b"L")
    if not _DECIMAL.fullmatch(digits):
        refuse("holds a line that is no number", "pickle.malformed")
    machine.stack.append(int(digits))


def _float_line(machine: Machine) -> None:
    try:
        machine.stack.append(float(machine.line()))
    except ValueError:
        refuse("holds a line that is no number", "pickle.malformed")


def _float(machine: Machine) -> None:
    machine.stack.append(struct.unpack(">d", machine.take(8))[0])


def _text(size: int) -> Callable[[Machine], None]:
    return lambda machine: machine.stack.append(_decoded(machine.take(machine.number(size))))


def _text_usual(machine: Machine) -> None:
    (size,) = _U32(machine.data, machine.position)
    machine.position += 4
    machine.stack.append(_decoded(machine.take(size)))


def _decoded(raw: bytes) -> str:
    try:
        return raw.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        refuse("holds text that is no UTF-8", "pickle.malformed")


def _bytes(size: int) -> Callable[[Machine], None]:
    return lambda machine: machine.stack.append(machine.take(machine.number(size)))


def _escaped(machine: Machine) -> None:
    try:
        machine.stack.append(machine.line().decode("raw-unicode-escape"))
    except UnicodeDecodeError:
        refuse("holds text that cannot be decoded", "pickle.malformed")


# --- containers ---------------------------------------------------------------------------------------------


def _mark(machine: Machine) -> None:
    stack = machine.stack
    if stack and type(stack[-1]) is Global and stack[-1].shortcut and _skip(machine, stack[-1].shortcut):
        return
    if len(machine.outer) >= MAX_MARKS:
        refuse(f"nests more than {MAX_MARKS:,} groups", "pickle.stack")
    machine.outer.append(stack)
    machine.below += len(stack)
    machine.stack = []


def _skip(machine: Machine, shortcut: Shortcut) -> bool:
    """Carry out a whole call at once; false where it is not of the usual form."""
    if machine.scattered or not machine.shortcuts:
        return False
    step = shortcut(machine.data, machine.position, machine.memo, machine.persistent)
    if step is None:
        return False
    machine.stack[-1:] = step.values
    machine.position = step.end
    machine.charge(SHORTCUT * len(step.values) // 2)
    return True


def _tuple(length: int) -> Callable[[Machine], None]:
    def push(machine: Machine) -> None:
        stack = machine.stack
        if len(stack) < length:
            underflow()
        values = tuple(stack[-length:])
        del stack[-length:]
        stack.append(values)

    return push


def _tuple_marked(machine: Machine) -> None:
    values = machine.pop_marked()
    machine.stack.append(tuple(values))


def _list_marked(machine: Machine) -> None:
    values = machine.pop_marked()
    machine.stack.append(values)


def _dict_marked(machine: Machine) -> None:
    values = machine.pop_marked()
    machine.stack.append(Pairs(_paired(values)))


def _paired(values: list[object]) -> list[tuple[object, object]]:
    if len(values) % 2:
        refuse("holds a key without a value", "pickle.malformed")
    return list(zip(values[::2], values[1::2], strict=True))


def _append(machine: Machine) -> None:
    value = machine.stack.pop()
    _listed(machine.stack[-1]).append(value)


def _appends(machine: Machine) -> None:
    values = machine.pop_marked()
    _listed(machine.stack[-1]).extend(values)


def _listed(value: object) -> list[object]:
    if not isinstance(value, list):
        refuse(f"adds items to {describe(value)}", "pickle.append")
    return value


def _setitem(machine: Machine) -> None:
    value, key = machine.stack.pop(), machine.stack.pop()
    _mapped(machine.stack[-1]).items.append((key, value))


def _setitems(machine: Machine) -> None:
    values = machine.pop_marked()
    _mapped(machine.stack[-1]).items.extend(_paired(values))


def _mapped(value: object) -> Pairs | Instance:
    if not isinstance(value, Pairs | Instance):
        refuse(f"sets a key of {describe(value)}", "pickle.setitem")
    return value


def _additems(machine: Machine) -> None:
    machine.pop_marked()
    target = machine.stack[-1]
    if not isinstance(target, Opaque):
        refuse(f"adds items to {describe(target)}", "pickle.append")


def _frozenset(machine: Machine) -> None:
    machine.pop_marked()
    machine.stack.append(Opaque("a set"))


# --- stack and memo -----------------------------------------------------------------------------------------


def _pop(machine: Machine) -> None:
    if machine.outer and not machine.stack:
        machine.pop_marked()
    else:
        machine.stack.pop()


def _pop_mark(machine: Machine) -> None:
    machine.pop_marked()


def _duplicate(machine: Machine) -> None:
    machine.stack.append(machine.stack[-1])


def _put(machine: Machine) -> None:
    machine.remember(machine.byte())


def _put_long(machine: Machine) -> None:
    (place,) = _U32(machine.data, machine.position)
    machine.position += 4
    machine.remember(place)


def _get(machine: Machine) -> None:
    machine.recall(machine.byte())


def _get_long(machine: Machine) -> None:
    (place,) = _U32(machine.data, machine.position)
    machine.position += 4
    machine.recall(place)


def _memoize(machine: Machine) -> None:
    machine.remember(machine.remembered)


def _place(machine: Machine) -> int:
    line = machine.line()
    if not re.fullmatch(rb"[0-9]{1,10}", line):
        refuse("holds a line that is no memo place", "pickle.malformed")
    return int(line)


def _put_line(machine: Machine) -> None:
    machine.remember(_place(machine))


def _get_line(machine: Machine) -> None:
    machine.recall(_place(machine))


def _protocol(machine: Machine) -> None:
    version = machine.byte()
    if version not in PROTOCOLS:
        refuse(f"is written in pickle protocol {version}, which is not known", "pickle.protocol")


def _frame(machine: Machine) -> None:
    """Frames are a hint to readers of streams; what counts is that the bytes are there when they are taken."""
    machine.number(8)


# --- names, calls and state ---------------------------------------------------------------------------------


def _global(machine: Machine) -> None:
    machine.stack.append(_find(machine, *_named(machine)))


def _named(machine: Machine) -> tuple[str, str]:
    try:
        return machine.line().decode("utf-8"), machine.line().decode("utf-8")
    except UnicodeDecodeError:
        refuse("names a global that is no text", "pickle.malformed")


def _global_on_stack(machine: Machine) -> None:
    name, module = machine.stack.pop(), machine.stack.pop()
    if type(name) is not str or type(module) is not str:
        refuse("names a global by other than text", "pickle.malformed")
    machine.stack.append(_find(machine, module, name))


def _find(machine: Machine, module: str, name: str) -> Global:
    """The stand-in for a global. A dotted ``name`` would be a chain of attributes: it is in no allow-list."""
    found = machine.allowed.get(f"{module}.{name}") if "." not in name else None
    if found is None:
        _refuse_global(module, name)
    return found


def _refuse_global(module: str, name: str) -> NoReturn:
    # Only this knows where a pickle of Python 2 would end up; both names are worth showing as they stand.
    what = f"{shown(module, 100)}.{shown(name, 100)}"
    refuse(f"asks to import {what}: refused; nothing was run", "pickle.global", HINT)


def _instance(machine: Machine) -> None:
    """INST imports and calls: a name that is not allowed is said first."""
    found = _find(machine, *_named(machine))
    refuse(f"makes an instance of {describe(found)} by an opcode that is not read", "pickle.opcode", HINT)


def _new_object(machine: Machine) -> None:
    """NEWOBJ is a call, where the allow-list says that a class may be."""
    function = machine.stack[-2]
    if not isinstance(function, Global) or not function.instances:
        refuse_opcode(0x81)
    _reduce(machine)


def _reduce(machine: Machine) -> None:
    arguments, function = machine.stack.pop(), machine.stack.pop()
    if not isinstance(function, Global) or function.make is None:
        refuse(f"calls {describe(function)}, which is no function that may be called", "pickle.call", HINT)
    if type(arguments) is not tuple:
        refuse(f"calls {describe(function)} with {describe(arguments)} for arguments", "pickle.malformed")
    machine.stack.append(function.make(arguments))


def _build(machine: Machine) -> None:
    """Attributes: a dictionary keeps them apart from its items, an opaque value loses them."""
    state, target = machine.stack.pop(), machine.stack[-1]
    if isinstance(target, Opaque):
        return
    if isinstance(target, Instance):
        target.state = state
        return
    if not isinstance(target, Pairs) or not isinstance(state, Pairs) or target.state is not None:
        refuse(f"sets attributes of {describe(target)} to {describe(state)}", "pickle.build", HINT)
    target.state = state


def _persistent(machine: Machine) -> None:
    machine.stack.append(machine.persistent(machine.stack.pop()))


_TABLE: dict[bytes, Callable[[Machine], None]] = {
    b"(": _mark, b"0": _pop, b"1": _pop_mark, b"2": _duplicate,
    b"F": _float_line, b"G": _float, b"I": _decimal, b"L": _decimal,
    b"J": _signed, b"K": _unsigned_byte, b"M": _unsigned_word, b"\x8a": _long(1), b"\x8b": _long(4),
    b"N": _push(None), b"\x88": _push(True), b"\x89": _push(False),
    b"V": _escaped, b"X": _text_usual, b"\x8c": _text(1), b"\x8d": _text(8), b"T": _text(4), b"U": _text(1),
    b"B": _bytes(4), b"C": _bytes(1), b"\x8e": _bytes(8), b"\x96": _bytes(8),
    b"]": lambda machine: machine.stack.append([]), b"}": lambda machine: machine.stack.append(Pairs()),
    b")": _push(()), b"\x8f": _push(Opaque("a set")),
    b"t": _tuple_marked, b"\x85": _tuple(1), b"\x86": _tuple(2), b"\x87": _tuple(3),
    b"l": _list_marked, b"d": _dict_marked, b"a": _append, b"e": _appends, b"s": _setitem, b"u": _setitems,
    b"\x90": _additems, b"\x91": _frozenset,
    b"p": _put_line, b"q": _put, b"r": _put_long, b"\x94": _memoize, b"g": _get_line, b"h": _get, b"j": _get_long,
    b"\x80": _protocol, b"\x95": _frame,
    b"c": _global, b"\x93": _global_on_stack, b"i": _instance, b"R": _reduce, b"\x81": _new_object,
    b"b": _build, b"Q": _persistent,
}  # fmt: skip
_HANDLERS: Handlers = [_TABLE.get(bytes([code])) for code in range(256)]
