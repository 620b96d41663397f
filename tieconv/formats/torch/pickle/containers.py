"""Handle the pickle opcodes that build tuples, lists, dictionaries and sets."""

from __future__ import annotations

from collections.abc import Callable

from tieconv.formats.torch.pickle.machine_state import MAX_MARKS, SHORTCUT, Machine, Opcodes, underflow
from tieconv.formats.torch.pickle.values import Global, Instance, Opaque, Pairs, Shortcut, describe, refuse

_SET = Opaque("a set")
_LOOKED_AT = 100
"""The most values of one dictionary key that are checked."""


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
    _mapped(machine.stack[-1]).items.extend(_paired([key, value]))


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
    machine.stack.append(_SET)


CONTAINERS: Opcodes = {
    b"(": _mark, b"]": lambda machine: machine.stack.append([]), b"}": lambda machine: machine.stack.append(Pairs()),
    b")": lambda machine: machine.stack.append(()), b"\x8f": lambda machine: machine.stack.append(_SET),
    b"t": _tuple_marked, b"\x85": _tuple(1), b"\x86": _tuple(2), b"\x87": _tuple(3),
    b"l": _list_marked, b"d": _dict_marked, b"a": _append, b"e": _appends, b"s": _setitem, b"u": _setitems,
    b"\x90": _additems, b"\x91": _frozenset,
}  # fmt: skip
