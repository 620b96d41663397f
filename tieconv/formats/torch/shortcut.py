"""Read the usual opcodes of a tensor as a whole, because a large model repeats them 500,000 times.

    NAME BINPUT BINGET MARK  MARK "storage" class KEY "cpu" ELEMENTS TUPLE BINPERSID  OFFSET SHAPE STRIDE
    NEWFALSE OrderedDict() TUPLE REDUCE BINPUT

If one byte differs, the interpreter reads the opcodes one by one. It makes every refusal too.
Source: `torch.serialization._save` of torch 2.13 with the default protocol, 2.
"""

from __future__ import annotations

import re
import struct
from functools import lru_cache

from tieconv.formats.torch.pickle.values import INNER, Global, Persistent, Step, StorageRef, StoredTensor

_GET, _PUT = rb"h(.)", rb"r(....)"
_NUMBER = rb"(?:K.|M..|J....)"
_SIZES = rb"(%(n)s\x85|%(n)s{2}\x86|%(n)s{3}\x87|\(%(n)s{4,8}t)" % {b"n": _NUMBER}
_CALL = (
    rb"\(" + _GET + rb"(?:h(.)|j(....))X(..)\0\0([0-9]{1,20})" + _PUT  # key
    + _GET + rb"(" + _NUMBER + rb")N?t" + _PUT + rb"Q"  # persistent id
    + rb"(" + _NUMBER + rb")" + _SIZES + _PUT + _SIZES + _PUT  # offset, shape, stride
    + rb"[\x88\x89]" + _GET + rb"\)R" + _PUT + rb"t" + _PUT + rb"R" + _PUT  # hooks, arguments, tensor
)  # fmt: skip
_TEXT = struct.Struct("<cI").unpack_from
_PUT_TEXT = struct.Struct("<cI").pack
_PLACES = struct.Struct("<7I").pack
FIRST = 4096
"""Memo entries before the shortcut is used. To compile the pattern takes as long as to read 500 tensors."""
_MOST = 1000
"""The most tensors of one step: picklers close a group after this many items."""


def usual_tensors(data: bytes, position: int, memo: list[object], persistent: Persistent) -> Step | None:
    """Read calls of ``_rebuild_tensor_v2`` and the names between them. The first MARK is before ``position``.

    Returns ``None`` if the first call is unusual. Adds to ``memo`` what the opcodes remember.
    """
    if len(memo) < FIRST:
        return None
    match = _pattern().match
    opening = _opening(data, position, memo)
    values: list[object] = []
    names: tuple[str, ...] = ()
    end = position
    while len(values) < 2 * _MOST:
        matched = match(data, position)
        made = matched and _tensor(matched, memo, len(memo) + len(names), persistent)
        if not matched or not made:
            break
        memo += names
        memo += made
        values += names
        values.append(made[-1])
        end = matched.end()
        names, position = _next(data, end, len(memo), opening)
        if not names:
            break
    return Step(end, values) if values else None


@lru_cache(maxsize=1)
def _pattern() -> re.Pattern[bytes]:
    return re.compile(_CALL, re.DOTALL)


def _opening(data: bytes, position: int, memo: list[object]) -> bytes:
    """Return the BINGET of the function and the MARK before ``position``, or nothing if they are not there."""
    opening = data[position - 3 : position]
    if not opening.startswith(b"h") or opening[1] >= len(memo):
        return b""
    function = memo[opening[1]]
    return opening if type(function) is Global and function.shortcut is usual_tensors else b""


def _next(data: bytes, start: int, number: int, opening: bytes) -> tuple[tuple[str, ...], int]:
    """Return the name after a call as a tuple, and the offset behind the MARK of the next call."""
    if len(data) - start < 5:
        return (), start
    opcode, size = _TEXT(data, start)
    put = start + 5 + size
    if opcode != b"X" or not opening or data[put : put + 8] != _PUT_TEXT(b"r", number) + opening:
        return (), start
    try:
        return (data[start + 5 : put].decode("utf-8"),), put + 8
    except UnicodeDecodeError:
        return (), start


def _tensor(
    matched: re.Match[bytes], memo: list[object], first: int, persistent: Persistent
) -> tuple[object, ...] | None:
    """Return what a call adds to the memo from ``first`` on, the tensor last. ``None`` if the call is unusual."""
    (
        word, short, long, key_length, key, key_put, location, elements, pid_put,
        start, shape, shape_put, stride, stride_put, hooks, hooks_put, arguments_put, tensor_put,
    ) = matched.groups()  # fmt: skip
    places = key_put + pid_put + shape_put + stride_put + hooks_put + arguments_put + tensor_put
    if places != _PLACES(*range(first, first + 7)) or len(key) != int.from_bytes(key_length, "little"):
        return None
    number = short[0] if short else int.from_bytes(long, "little")
    if max(word[0], number, location[0], hooks[0]) >= len(memo):
        return None
    kind, called = memo[number], memo[hooks[0]]
    if type(kind) is not Global or type(called) is not Global or called.name != "collections.OrderedDict":
        return None
    offset, sides, steps = _number(start), _sizes(shape), _sizes(stride)
    if offset < 0 or sides is None or steps is None or len(sides) != len(steps):
        return None
    text = key.decode("ascii")
    storage = persistent((memo[word[0]], kind, text, memo[location[0]], _number(elements)))
    if type(storage) is not StorageRef:
        return None
    return text, INNER, INNER, INNER, INNER, INNER, StoredTensor(storage, storage.dtype, offset, sides, steps)


@lru_cache(maxsize=4096)
def _number(code: bytes) -> int:
    return int.from_bytes(code[1:], "little", signed=code.startswith(b"J"))


@lru_cache(maxsize=4096)
def _sizes(code: bytes) -> tuple[int, ...] | None:
    """Return the numbers of a tuple, or ``None`` if one is negative."""
    numbers = tuple(map(_number, re.findall(_NUMBER, code.removeprefix(b"(")[:-1], re.DOTALL)))
    return numbers if min(numbers) >= 0 else None
