"""Handle the pickle opcodes that import, call and set state, with which a pickle could run a program.

A global must be on an allow-list. A call passes its arguments to a function of tieconv instead.
"""

from __future__ import annotations

from typing import NoReturn

from tieconv.formats.torch.pickle.machine_state import HINT, Machine, Opcodes, refuse_opcode
from tieconv.formats.torch.pickle.values import Global, Instance, Opaque, Pairs, describe, refuse
from tieconv.text import shown


def _global(machine: Machine) -> None:
    machine.stack.append(_find(machine, *_named(machine)))


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
        _refuse_global(module, name)
    if not entry.weights_only:
        machine.unsupported[f"the global {entry.name}"] = None
    return entry


def _refuse_global(module: str, name: str) -> NoReturn:
    # The message shows both names unchanged, because Python may map names of Python 2 to other modules.
    global_name = f"{shown(module, 100)}.{shown(name, 100)}"
    refuse(f"asks to import {global_name}: tieconv refuses the file and runs nothing", "pickle.global", HINT)


def _instance(machine: Machine) -> NoReturn:
    """Refuse INST, which imports and calls. A name that is not allowed is reported first."""
    class_ = _find(machine, *_named(machine))
    refuse(
        f"makes an instance of {describe(class_)} with the opcode INST, which tieconv does not read",
        "pickle.opcode",
        HINT,
    )


def _new_object(machine: Machine) -> None:
    """Treat NEWOBJ as a call if the allow-list permits it for the class."""
    function = machine.stack[-2]
    if not isinstance(function, Global) or not function.instances:
        refuse_opcode(0x81)
    _reduce(machine)


def _reduce(machine: Machine) -> None:
    arguments, function = machine.stack.pop(), machine.stack.pop()
    if not isinstance(function, Global) or function.make is None:
        refuse(f"calls {describe(function)}, which is not an allowed function", "pickle.call", HINT)
    if type(arguments) is not tuple:
        refuse(f"calls {describe(function)} with {describe(arguments)} instead of a tuple", "pickle.malformed")
    machine.stack.append(function.make(arguments))


def _build(machine: Machine) -> None:
    """Set attributes. A dictionary keeps them separately from its items; an opaque value drops them."""
    state, target = machine.stack.pop(), machine.stack[-1]
    if isinstance(target, Opaque):
        return
    if isinstance(target, Instance):
        target.build(state)
        return
    if not isinstance(target, Pairs) or not isinstance(state, Pairs) or target.state is not None:
        refuse(f"sets attributes of {describe(target)} to {describe(state)}", "pickle.build", HINT)
    target.state = state


def _persistent(machine: Machine) -> None:
    machine.stack.append(machine.persistent(machine.stack.pop()))


CALLS: Opcodes = {
    b"c": _global, b"\x93": _global_on_stack, b"i": _instance, b"R": _reduce, b"\x81": _new_object,
    b"b": _build, b"Q": _persistent,
}  # fmt: skip
