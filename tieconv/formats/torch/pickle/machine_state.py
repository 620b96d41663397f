"""The state of the pickle interpreter: its stack, its memo and its limits. `pickle_machine` runs it."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import NoReturn

from tieconv.formats.torch.pickle.opcode_names import opcode_name
from tieconv.formats.torch.pickle.values import INNER, Globals, Persistent, refuse

MAX_STACK = 1 << 17
"""Values on the stack. Picklers hand over items by the thousand; only a tuple's items lie there all at once."""
MAX_MARKS = 10_000
MAX_SCATTERED = 100_000
"""Places of the memo out of their order. Picklers number them 0, 1, 2 …, those of Python 2 from 1."""
MAX_INTEGER = 255
"""Bytes of an integer: LONG1 can hold no more."""
MAX_LINE = 512
"""Bytes of a text argument: a global's name, a decimal number."""
OPCODES = 1_000_000
"""Opcodes that every pickle may have: a fifth of a second. Those of 30,000 views of one storage are as many."""
OPCODES_EACH = 64
"""Opcodes more for each storage: that of a tensor takes about 32."""
BYTES_EACH = 64
"""Bytes of a file that allow for one opcode more: lists of numbers grow with the data that they belong to."""
PROTOCOLS = range(6)
_BATCH = 4096
"""Opcodes between two looks at the limits: each pushes one value at most."""
SHORTCUT = 32
"""Opcodes that a shortcut stands for."""

HINT = (
    "only tensors in dictionaries are read; if you trust the file and it holds a whole model or a training run, "
    "load it with torch and save model.state_dict()"
)


class Truncated(Exception):
    """The pickle goes on behind the bytes that are given."""


class Inside(Exception):
    """The pickle recalls a value that a shortcut left out."""


def allowance(length: int, storages: int) -> int:
    """The most opcodes of an honest pickle in a file of ``length`` bytes that holds ``storages``.

    Without it a small file, or a large one of nothing but a pickle, would keep the reader busy for as long as
    its bytes last: what costs time must be paid for with storages or with data.
    """
    return OPCODES + OPCODES_EACH * storages + length // BYTES_EACH


class Machine:
    """The state of a run. ``stack`` holds the values above the last MARK, ``outer`` the stacks below it."""

    __slots__ = (
        "allowed",
        "below",
        "charged",
        "data",
        "memo",
        "most",
        "outer",
        "persistent",
        "position",
        "scattered",
        "shortcuts",
        "stack",
        "unsupported",
    )

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
        self.below = 0  # values in the outer stacks
        self.memo: list[object] = []
        self.scattered: dict[int, object] = {}
        self.unsupported: dict[int | str, None] = {}
        """What ``torch.load(weights_only=True)`` refuses, in the order of its first use: opcodes and globals."""

    def run(self, handlers: Handlers) -> tuple[object, int]:
        """The value of the pickle and the offset behind it."""
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
            refuse("holds a pickle that ends with other than one value", "pickle.malformed")
        return self.stack[0], self.position

    def _some(self, handlers: Handlers) -> bool:
        """Carry out the next opcodes; true once STOP is reached."""
        data = self.data
        for _ in range(_BATCH):
            opcode = data[self.position]
            self.position += 1
            handler = handlers[opcode]
            if handler is None:
                return _stopped(opcode)
            handler(self)
        return False

    def charge(self, opcodes: int) -> None:
        """Count ``opcodes``, and look at the limits."""
        if len(self.stack) + self.below > MAX_STACK:
            refuse(f"piles up more than {MAX_STACK:,} values", "pickle.stack")
        self.charged += opcodes
        if self.charged > self.most():
            refuse("has a pickle of more opcodes than its data can need", "pickle.opcodes")

    # --- arguments ------------------------------------------------------------------------------------------

    def take(self, size: int) -> bytes:
        """The next ``size`` bytes. Only as much is allocated as is there."""
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
        """The values above the last MARK, which goes away."""
        if not self.outer:
            refuse("closes a group that it never opened", "pickle.malformed")
        values = self.stack
        self.stack = stack = self.outer.pop()
        self.below -= len(stack)
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
            refuse(f"remembers more than {MAX_SCATTERED:,} values in no order", "pickle.memo")
        self.scattered[number] = value

    @property
    def remembered(self) -> int:
        """How many places of the memo are taken."""
        return len(self.memo) - (self.memo[:1] == [_NEVER]) + len(self.scattered)

    def recall(self, number: int) -> None:
        value = self.memo[number] if number < len(self.memo) else self.scattered.get(number, _NEVER)
        if value is _NEVER:
            refuse("recalls a value that it never stored", "pickle.malformed")
        if value is INNER:
            raise Inside
        self.stack.append(value)


Opcodes = dict[bytes, Callable[[Machine], None]]
"""What some opcodes do, by their byte."""
Handlers = Sequence[Callable[[Machine], None] | None]
"""What each opcode does, by its byte; ``None`` for STOP and for opcodes that are not read."""
_NEVER = object()
_STOP = ord(".")


_WEIGHTS_ONLY = frozenset(b"c\x81Rbaesu(t\x85\x86\x87N\x88\x89)]}\x8fJKMGXUQhjqr\x8a\x80.")
"""The opcodes that torch 2.13 takes in ``torch.load(weights_only=True)``; source: `torch._weights_only_unpickler`."""


def noting(opcode: int, handler: Callable[[Machine], None]) -> Callable[[Machine], None]:
    """Return ``handler``, which also notes its opcode where ``torch.load(weights_only=True)`` refuses that."""
    if opcode in _WEIGHTS_ONLY:
        return handler

    def noted(machine: Machine) -> None:
        machine.unsupported[opcode] = None
        handler(machine)

    return noted


def _stopped(opcode: int) -> bool:
    if opcode != _STOP:
        refuse_opcode(opcode)
    return True


def refuse_opcode(opcode: int) -> NoReturn:
    """Raise the `PickleProblem` of an opcode that is not read."""
    refuse(f"uses the pickle opcode {opcode_name(opcode)}, which is not read", "pickle.opcode", HINT)


def underflow() -> NoReturn:
    """Raise the `PickleProblem` of a stack that has too few values."""
    refuse("takes more values than it has", "pickle.malformed")
