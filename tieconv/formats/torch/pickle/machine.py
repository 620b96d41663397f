"""A pickle interpreter that cannot run anything.

Every opcode makes a plain value or one of the stand-ins of `pickle_values`. A global is a name in an allow-list,
REDUCE hands its arguments to a function of this program, and opcodes that would create or call anything else are
refused. Opcodes, stack, memo, marks and numbers are bounded; memory grows with the bytes of the pickle alone.

A global may have a shortcut, which reads a usual call of it in one go: a torch file repeats the same thirty opcodes
for each tensor. It gives what the opcodes one by one would give, but for the values inside of the call: should a
pickle recall one of them, it is read again without shortcuts.
"""

from __future__ import annotations

from collections.abc import Callable

from tieconv.formats.torch.pickle.calls import CALLS
from tieconv.formats.torch.pickle.containers import CONTAINERS
from tieconv.formats.torch.pickle.machine_state import Handlers, Inside, Machine, noting
from tieconv.formats.torch.pickle.memo import MEMO
from tieconv.formats.torch.pickle.opcode_names import opcode_name
from tieconv.formats.torch.pickle.plain import PLAIN
from tieconv.formats.torch.pickle.values import Globals, Persistent


def run(
    data: bytes,
    start: int,
    allowed: Globals,
    persistent: Persistent,
    most: Callable[[], int],
    unsupported: dict[str, None] | None = None,
) -> tuple[object, int]:
    """The value of the pickle at ``start`` of ``data``, and the offset behind it.

    ``persistent`` makes a value from a persistent id; ``most`` tells how many opcodes may be carried out, and is
    asked now and then. ``unsupported`` gathers what ``torch.load(weights_only=True)`` refuses. Raises
    `PickleProblem` for a pickle that is not read, and `Truncated` where ``data`` ends inside of it.
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
