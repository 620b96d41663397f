"""Interpret a pickle without running anything.

Every opcode makes a basic value or a replacement from `tieconv.formats.torch.pickle.values`. A global must be on an
allow-list, and REDUCE passes its arguments to a function of tieconv. Opcodes that would create or call anything else
are refused. Opcodes, stack, memo, marks and numbers are bounded. Memory grows with the bytes of the pickle alone.

A global may have a shortcut for a usual call, because a torch file repeats thirty opcodes for each tensor. The
result is the same, except that the memo lacks the values inside the call. If a pickle recalls such a value, the
interpreter reads the pickle again without shortcuts.
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
