"""Interpret a pickle without running anything: one handler for each opcode, in tables."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable
from typing import NoReturn

from tieconv.formats.torch.pickle_stack import (
    HINT,
    MAX_INTEGER,
    PROTOCOLS,
    SHORTCUT,
    Global,
    Globals,
    Handlers,
    Inside,
    Instance,
    Machine,
    Opaque,
    Opcodes,
    Pairs,
    Persistent,
    Shortcut,
    Truncated,
    describe,
    noting,
    opcode_name,
    refuse,
    refuse_opcode,
    underflow,
)
from tieconv.text import shown


# Handle the pickle opcodes that import, call and set state, with which a pickle could run a program.
#
# A global must be on an allow-list. A call passes its arguments to a function of tieconv instead.
def _named(machine: Machine) -> tuple[str, str]:
    try:
        return machine.line().decode("utf-8"), machine.line().decode("utf-8")
    except UnicodeDecodeError:
        refuse("names a global with bytes that are not UTF-8", "pickle.malformed")


def _global_on_stack(machine: Machine) -> None:
    name, module = machine.stack.pop(), machine.stack.pop()
    if type(name) is not str or type(module) is not str:
        refuse("names a global with a value that is not text", "pickle.malformed")
    machine.stack.append(_find(machine, module, name))


def _find(machine: Machine, module: str, name: str) -> Global:
    """Return the allowed replacement of a global. Refuses a dotted ``name``, which is a chain of attributes."""
    entry = machine.allowed.get(f"{module}.{name}") if "." not in name else None
    if entry is None:
        # The message shows both names unchanged, because Python may map names of Python 2 to other modules.
        global_name = f"{shown(module, 100)}.{shown(name, 100)}"
        refuse(f"asks to import {global_name}: tieconv refuses the file and runs nothing", "pickle.global", HINT)
    if not entry.weights_only:
        machine.unsupported[f"the global {entry.name}"] = None
    return entry


def _instance(machine: Machine) -> NoReturn:
    """Refuse INST, which imports and calls. A name that is not allowed is reported first."""
    class_ = _find(machine, *_named(machine))
    problem = f"makes an instance of {describe(class_)} with the opcode INST, which tieconv does not read"
    refuse(problem, "pickle.opcode", HINT)


def _new_object(machine: Machine) -> None:
    """Treat NEWOBJ as a call if the allow-list permits it for the class."""
    function = machine.stack[-2]
    if not isinstance(function, Global) or function.instances is None:
        refuse_opcode(0x81)
    machine.stack[-2] = function._replace(make=function.instances)
    _reduce(machine)


def _reduce(machine: Machine) -> None:
    arguments, function = machine.stack.pop(), machine.stack.pop()
    if not isinstance(function, Global) or function.make is None:
        refuse(f"calls {describe(function)}, which is not an allowed function", "pickle.call", HINT)
    if type(arguments) is not tuple:
        refuse(f"calls {describe(function)} with {describe(arguments)} instead of a tuple", "pickle.malformed")
    machine.stack.append(machine.nest(function.make(arguments), (arguments,)))


def _build(machine: Machine) -> None:
    """Set attributes. A dictionary keeps them separately from its items; an opaque value drops them."""
    state, target = machine.stack.pop(), machine.stack[-1]
    if isinstance(target, Opaque):
        return
    machine.nest(target, (state,), grown=True)
    if isinstance(target, Instance):
        target.build(state)
        return
    if not isinstance(target, Pairs) or not isinstance(state, Pairs) or target.state is not None:
        refuse(f"sets attributes of {describe(target)} to {describe(state)}", "pickle.build", HINT)
    target.state = state


CALLS: Opcodes = {
    b"c": lambda machine: machine.stack.append(_find(machine, *_named(machine))),
    b"Q": lambda machine: machine.stack.append(machine.persistent(machine.stack.pop())),
    b"\x93": _global_on_stack, b"i": _instance, b"R": _reduce, b"\x81": _new_object, b"b": _build,
}  # fmt: skip


# Handle the pickle opcodes that build tuples, lists, dictionaries and sets.

_SET = Opaque("a set")
_LOOKED_AT = 100
"""The most values of one dictionary key that are checked."""


def _mark(machine: Machine) -> None:
    stack = machine.stack
    if stack and type(stack[-1]) is Global and stack[-1].shortcut and _skip(machine, stack[-1].shortcut):
        return
    machine.outer.append(stack)
    machine.below += len(stack) + 1
    machine.stack = []


def _skip(machine: Machine, shortcut: Shortcut) -> bool:
    """Run a whole call at once, and return whether it has the usual form."""
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
        stack.append(machine.nest(values, values))

    return push


def _marked(made: Callable[[list[object]], object]) -> Callable[[Machine], None]:
    """Return the handler that pushes what is ``made`` of the values above the last MARK."""

    def push(machine: Machine) -> None:
        values = machine.pop_marked()  # first, because it changes the stack
        machine.stack.append(machine.nest(made(values), values))

    return push


def _paired(values: list[object]) -> list[tuple[object, object]]:
    if len(values) % 2:
        refuse("holds a key without a value", "pickle.malformed")
    keys = values[::2]
    if any(type(key) is not str and not _is_key(key) for key in keys):
        refuse("has a dictionary whose key is a list, a set or a dictionary", "pickle.malformed")
    return list(zip(keys, values[1::2], strict=True))


def _is_key(value: object) -> bool:
    """Return whether Python can hash a key of a pickle. Checks at most `_LOOKED_AT` nested values."""
    pending, seen = [value], 0
    while pending and seen < _LOOKED_AT:
        part = pending.pop()
        seen += 1
        if part is _SET or isinstance(part, Pairs | list):
            return False
        if type(part) is tuple:
            pending += part[:_LOOKED_AT]
    return True


def _append(machine: Machine, values: list[object]) -> None:
    target = machine.stack[-1]
    if not isinstance(target, list):
        refuse(f"adds items to {describe(target)}", "pickle.append")
    machine.nest(target, values, grown=True)
    target.extend(values)


def _set_items(machine: Machine, values: list[object]) -> None:
    target = machine.stack[-1]
    mappings = ("OrderedDict", "defaultdict", "Counter", "builtins.dict")
    if not isinstance(target, Pairs) and not (isinstance(target, Instance) and target.name.endswith(mappings)):
        refuse(f"sets a key of {describe(target)}", "pickle.setitem")
    machine.nest(target, values, grown=True)
    target.items.extend(_paired(values))


def _additems(machine: Machine) -> None:
    machine.pop_marked()
    target = machine.stack[-1]
    if not isinstance(target, Opaque):
        refuse(f"adds items to {describe(target)}", "pickle.append")


CONTAINERS: Opcodes = {
    b"(": _mark, b"]": lambda machine: machine.stack.append(machine.nest([], ())),
    b"}": lambda machine: machine.stack.append(machine.nest(Pairs(), ())),
    b")": lambda machine: machine.stack.append(()), b"\x8f": lambda machine: machine.stack.append(_SET),
    b"t": _marked(tuple), b"l": _marked(list), b"d": _marked(lambda values: Pairs(_paired(values))),
    b"\x91": _marked(lambda _: _SET), b"\x85": _tuple(1), b"\x86": _tuple(2), b"\x87": _tuple(3),
    b"a": lambda machine: _append(machine, [machine.stack.pop()]),
    b"e": lambda machine: _append(machine, machine.pop_marked()),
    b"s": lambda machine: _set_items(machine, [machine.stack.pop(), machine.stack.pop()][::-1]),
    b"u": lambda machine: _set_items(machine, machine.pop_marked()), b"\x90": _additems,
}  # fmt: skip


# Handle the pickle opcodes for the stack, the memo and the protocol.

_U32 = struct.Struct("<I").unpack_from


def _u32(machine: Machine) -> int:
    (number,) = _U32(machine.data, machine.position)
    machine.position += 4
    return int(number)


def _pop(machine: Machine) -> None:
    if machine.outer and not machine.stack:
        machine.pop_marked()
    else:
        machine.stack.pop()


def _memo_number(machine: Machine) -> int:
    line = machine.line()
    if not re.fullmatch(rb"[0-9]{1,10}", line):
        refuse("holds a line that is not a memo number", "pickle.malformed")
    return int(line)


def _protocol(machine: Machine) -> None:
    version = machine.byte()
    if version not in PROTOCOLS:
        refuse(f"has the unknown pickle protocol {version}", "pickle.protocol")


def _frame(machine: Machine) -> None:
    """Skip the length in the opcode `FRAME`. Python's unpickler fetches so many bytes at once."""
    if machine.number(8) > len(machine.data) - machine.position:
        raise Truncated


MEMO: Opcodes = {
    b"0": _pop, b"1": Machine.pop_marked, b"2": lambda machine: machine.stack.append(machine.stack[-1]),
    b"p": lambda machine: machine.remember(_memo_number(machine)),
    b"g": lambda machine: machine.recall(_memo_number(machine)),
    b"q": lambda machine: machine.remember(machine.byte()), b"h": lambda machine: machine.recall(machine.byte()),
    b"r": lambda machine: machine.remember(_u32(machine)), b"j": lambda machine: machine.recall(_u32(machine)),
    b"\x94": lambda machine: machine.remember(machine.remembered), b"\x80": _protocol, b"\x95": _frame,
}  # fmt: skip


# Handle the pickle opcodes that push one number, text or bytes.
def _push(value: object) -> Callable[[Machine], None]:
    return lambda machine: machine.stack.append(value)


def _long(size: int) -> Callable[[Machine], None]:
    def push(machine: Machine) -> None:
        length = machine.number(size)
        if length > MAX_INTEGER:
            refuse(f"holds an integer of {length:,} bytes", "pickle.integer")
        machine.stack.append(int.from_bytes(machine.take(length), "little", signed=True))

    return push


_DECIMAL = re.compile(rb"-?[0-9]{1,320}")
_FLOAT = re.compile(rb"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?|[+-]?(nan|inf|infinity)", re.I)


def _decimal(machine: Machine) -> None:
    line = machine.line()
    if line in (b"00", b"01"):
        machine.stack.append(line == b"01")
        return
    digits = line.removesuffix(b"L")
    if not _DECIMAL.fullmatch(digits):
        refuse("holds a line that is not a number", "pickle.malformed")
    machine.stack.append(int(digits))


def _float_line(machine: Machine) -> None:
    line = machine.line()  # Python's float() takes spaces, underscores and 1e999; pickle refuses them
    if not _FLOAT.fullmatch(line) or (float(line) in (math.inf, -math.inf) and b"n" not in line.lower()):
        refuse("holds a line that is not a number", "pickle.malformed")
    machine.stack.append(float(line))


def _text(size: int) -> Callable[[Machine], None]:
    return lambda machine: machine.stack.append(_decoded(machine.take(machine.number(size))))


def _decoded(raw: bytes) -> str:
    # Python needs up to four bytes of memory for each character.
    if len(raw) > 1 << 20:
        refuse(f"holds a string of {len(raw):,} bytes", "pickle.too-large")
    try:
        return raw.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        refuse("holds text that is not UTF-8", "pickle.malformed")


def _bytes(size: int) -> Callable[[Machine], None]:
    return lambda machine: machine.stack.append(machine.take(machine.number(size)))


def _escaped(machine: Machine) -> None:
    try:
        machine.stack.append(machine.line().decode("raw-unicode-escape"))
    except UnicodeDecodeError:
        refuse("holds text that cannot be decoded", "pickle.malformed")


PLAIN: Opcodes = {
    b"F": _float_line, b"G": lambda machine: machine.stack.append(struct.unpack(">d", machine.take(8))[0]),
    b"I": _decimal, b"L": _decimal, b"\x8a": _long(1), b"\x8b": _long(4),
    b"J": lambda machine: machine.stack.append(int.from_bytes(machine.take(4), "little", signed=True)),
    b"K": lambda machine: machine.stack.append(machine.byte()),
    b"M": lambda machine: machine.stack.append(machine.number(2)),
    b"N": _push(None), b"\x88": _push(True), b"\x89": _push(False),
    b"V": _escaped, b"X": lambda machine: machine.stack.append(_decoded(machine.take(_u32(machine)))),
    b"\x8c": _text(1), b"\x8d": _text(8), b"T": _text(4), b"U": _text(1),
    b"B": _bytes(4), b"C": _bytes(1), b"\x8e": _bytes(8), b"\x96": _bytes(8),
}  # fmt: skip


# Interpret a pickle without running anything.
#
# Every opcode makes a basic value or a replacement from `tieconv.formats.torch.pickle_stack`. A global must be on an
# allow-list, and REDUCE passes its arguments to a function of tieconv. Opcodes that would create or call anything
# else are refused. Opcodes, stack, memo, marks and numbers are bounded. Memory grows with the bytes of the pickle
# alone.
#
# A global may have a shortcut for a usual call, because a torch file repeats thirty opcodes for each tensor. The
# result is the same, except that the memo lacks the values inside the call. If a pickle recalls such a value, the
# interpreter reads the pickle again without shortcuts.
def run(
    data: bytes,
    start: int,
    allowed: Globals,
    persistent: Persistent,
    most: Callable[[], int],
    unsupported: dict[str, None] | None = None,
) -> tuple[object, int]:
    """Return the value of the pickle at ``start`` of ``data``, and the offset behind the pickle.

    ``persistent`` converts a persistent id to a value. ``most`` returns how many opcodes may run, and is called from
    time to time. Adds to ``unsupported`` what ``torch.load(weights_only=True)`` refuses. Raises `PickleProblem` for a
    pickle that tieconv refuses, and `Truncated` if ``data`` ends inside the pickle.
    """
    machine = Machine(data, start, allowed, persistent, most)
    try:
        result = machine.run(_HANDLERS)
    except Inside:
        machine = Machine(data, start, allowed, persistent, most, shortcuts=False)
        result = machine.run(_HANDLERS)
    if unsupported is not None:
        for feature in machine.unsupported:
            unsupported[f"the pickle opcode {opcode_name(feature)}" if isinstance(feature, int) else feature] = None
    return result


_TABLE = {**PLAIN, **CONTAINERS, **MEMO, **CALLS}
_HANDLERS: Handlers = [noting(code, _TABLE[bytes([code])]) if bytes([code]) in _TABLE else None for code in range(256)]
