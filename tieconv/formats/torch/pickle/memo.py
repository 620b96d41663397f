"""Handle the pickle opcodes for the stack, the memo and the protocol."""

from __future__ import annotations

import re
import struct

from tieconv.formats.torch.pickle.machine_state import PROTOCOLS, Machine, Opcodes, Truncated
from tieconv.formats.torch.pickle.values import refuse

_U32 = struct.Struct("<I").unpack_from


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
    (number,) = _U32(machine.data, machine.position)
    machine.position += 4
    machine.remember(number)


def _get(machine: Machine) -> None:
    machine.recall(machine.byte())


def _get_long(machine: Machine) -> None:
    (number,) = _U32(machine.data, machine.position)
    machine.position += 4
    machine.recall(number)


def _memoize(machine: Machine) -> None:
    machine.remember(machine.remembered)


def _memo_number(machine: Machine) -> int:
    line = machine.line()
    if not re.fullmatch(rb"[0-9]{1,10}", line):
        refuse("holds a line that is not a memo number", "pickle.malformed")
    return int(line)


def _put_line(machine: Machine) -> None:
    machine.remember(_memo_number(machine))


def _get_line(machine: Machine) -> None:
    machine.recall(_memo_number(machine))


def _protocol(machine: Machine) -> None:
    version = machine.byte()
    if version not in PROTOCOLS:
        refuse(f"has the unknown pickle protocol {version}", "pickle.protocol")


def _frame(machine: Machine) -> None:
    """Skip the length in the opcode `FRAME`. Python's unpickler fetches so many bytes at once."""
    if machine.number(8) > len(machine.data) - machine.position:
        raise Truncated


MEMO: Opcodes = {
    b"0": _pop, b"1": _pop_mark, b"2": _duplicate,
    b"p": _put_line, b"q": _put, b"r": _put_long, b"\x94": _memoize, b"g": _get_line, b"h": _get, b"j": _get_long,
    b"\x80": _protocol, b"\x95": _frame,
}  # fmt: skip
