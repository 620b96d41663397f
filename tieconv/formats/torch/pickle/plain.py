"""Handle the pickle opcodes that push one number, text or bytes."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable

from tieconv.formats.torch.pickle.machine_state import MAX_INTEGER, Machine, Opcodes
from tieconv.formats.torch.pickle.values import refuse

_U32 = struct.Struct("<I").unpack_from


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
        refuse("holds a line that is not a number", "pickle.malformed")
    machine.stack.append(int(digits))


def _float_line(machine: Machine) -> None:
    try:
        machine.stack.append(float(machine.line()))
    except ValueError:
        refuse("holds a line that is not a number", "pickle.malformed")


def _float(machine: Machine) -> None:
    machine.stack.append(struct.unpack(">d", machine.take(8))[0])


def _text(size: int) -> Callable[[Machine], None]:
    return lambda machine: machine.stack.append(_decoded(machine.take(machine.number(size))))


def _text_usual(machine: Machine) -> None:
    (size,) = _U32(machine.data, machine.position)
    machine.position += 4
    machine.stack.append(_decoded(machine.take(size)))


_MAX_STRING = 1 << 20
"""The most bytes of one string. Python needs up to four bytes of memory for each character."""


def _decoded(raw: bytes) -> str:
    if len(raw) > _MAX_STRING:
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
    b"F": _float_line, b"G": _float, b"I": _decimal, b"L": _decimal,
    b"J": _signed, b"K": _unsigned_byte, b"M": _unsigned_word, b"\x8a": _long(1), b"\x8b": _long(4),
    b"N": _push(None), b"\x88": _push(True), b"\x89": _push(False),
    b"V": _escaped, b"X": _text_usual, b"\x8c": _text(1), b"\x8d": _text(8), b"T": _text(4), b"U": _text(1),
    b"B": _bytes(4), b"C": _bytes(1), b"\x8e": _bytes(8), b"\x96": _bytes(8),
}  # fmt: skip
