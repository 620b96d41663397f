"""Load every JSON document with limits on size, depth and integers, without repeated keys, as strict UTF-8.

Python's parser accepts NaN and repeated keys, of which the last value counts. Other parsers read such files
differently, so tieconv refuses them in headers and indexes. Configs may hold them, because real configs do.
"""

from __future__ import annotations

import gc
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import isinf
from typing import NoReturn

from tieconv.errors import UnreadableError
from tieconv.text import shown

MAX_DEPTH = 64
MAX_INTEGER_DIGITS = 20  # a uint64 has 20
BUDGET = 128_000_000
"""The most bytes of memory for the values of one document."""
_CONTAINER_COST, _MEMBER_COST, _VALUE_COST = 80, 190, 60
"""Bytes of memory for the smallest list or object, the smallest member and the smallest value while parsing."""


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause garbage collection, which would scan millions of new objects again and again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class _Problem(ValueError):
    """A fault inside a JSON text. `loads` turns it into an `UnreadableError` with the file name."""


class _TooLarge(_Problem):
    """A JSON text whose values need more memory than `BUDGET`."""


def loads(
    data: bytes,
    name: str,
    *,
    limit: int,
    lenient: bool = False,
    duplicates: list[str] | None = None,
    digits: int = MAX_INTEGER_DIGITS,
    numbers: Callable[[str], object] | None = None,
) -> dict[str, object]:
    """Return the JSON object in ``data``, as `loads_any` returns any value. Raises `UnreadableError` with ``name``."""
    value = loads_any(data, name, limit=limit, lenient=lenient, duplicates=duplicates, digits=digits, numbers=numbers)
    if not isinstance(value, dict):
        refuse(name, f"it holds {_KINDS.get(type(value), 'a number')} instead of an object", "json.not-an-object")
    return value


def loads_any(
    data: bytes,
    name: str,
    *,
    limit: int,
    lenient: bool = False,
    duplicates: list[str] | None = None,
    digits: int = MAX_INTEGER_DIGITS,
    numbers: Callable[[str], object] | None = None,
) -> object:
    """Return the JSON value in ``data``.

    ``limit`` is the largest size in bytes, and ``digits`` the most digits of an integer. ``lenient`` accepts NaN,
    Infinity and lone surrogates. It also keeps the last value of a repeated key and appends the key to
    ``duplicates``. ``numbers`` converts the text of each number, whatever its size. Raises `UnreadableError` with
    ``name``.
    """
    if len(data) > limit:
        raise UnreadableError(
            f"{shown(name)} has {len(data):,} bytes of JSON, more than the limit of {limit:,}",
            "check the file: a config, index or header is never this large",
            "json.too-large",
        )

    def pairs(items: list[tuple[str, object]]) -> dict[str, object]:
        members = dict(items)
        if len(members) != len(items):
            seen: set[str] = set()
            repeated = next(key for key, _ in items if key in seen or seen.add(key))  # type: ignore[func-returns-value]
            if not lenient:
                raise _Problem(f"the key {shown(repeated)} is repeated")
            if duplicates is not None:
                duplicates.append(repeated)
        return members

    def constant(text: str) -> float:
        if lenient:
            return float(text.replace("Infinity", "inf"))
        raise _Problem(f"{text} is not a JSON number")

    def decimal(text: str) -> float:
        number = float(text)
        if isinf(number) and not lenient:
            raise _Problem(f"{shown(text, 40)} does not fit a 64-bit float")
        return number

    def integer(text: str) -> int | float:
        if len(text.lstrip("-")) > digits:
            raise _Problem(f"it holds an integer of {len(text)} digits")
        # The safetensors library does not read minus zero as an integer.
        return -0.0 if text == "-0" else int(text)

    try:
        _check_structure(data)
        text = data.decode("utf-8", errors="strict")
        with collector_paused():
            value = json.loads(
                text,
                object_pairs_hook=pairs,
                parse_constant=numbers or constant,
                parse_int=numbers or (integer if _may_hold_odd_integers(data, digits) else None),
                parse_float=numbers or decimal,
            )
        if not lenient:
            _check_surrogates(text, value)
    except UnicodeDecodeError as error:
        refuse(name, f"byte {error.start} is not UTF-8", "json.not-utf8")
    except json.JSONDecodeError as error:
        refuse(name, f"line {error.lineno}, column {error.colno}: {error.msg}", "json.malformed")
    except _Problem as error:
        refuse(name, str(error), _code(error))
    return value


_KINDS = {list: "a list", str: "a string", int: "a number", float: "a number", bool: "a boolean", type(None): "null"}


_DIGITS = bytes.maketrans(b"123456789", b"0" * 9)


def _may_hold_odd_integers(data: bytes, digits: int) -> bool:
    """Return whether `loads` must check each integer. This search is faster than millions of checks."""
    return b"-0" in data or b"0" * (digits + 1) in data.translate(_DIGITS)


_BRACKETS = bytes.maketrans(b"{}", b"[]")
_STRUCTURE = b"{}[],:"
_PLAIN = bytes(code for code in range(256) if code not in _STRUCTURE + b'"')
# Every alternative consumes at least one character and never backtracks. So a hostile text, such as an open string
# of escaped quotes, needs one pass too.
_STRING_OR_PLAIN = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[^{}\[\],:"]++'


def check_budget(data: bytes, name: str) -> None:
    """Refuse a text, or a part of one, whose values would need more memory than `BUDGET`. Does not parse it."""
    try:
        _check_structure(data, nesting=False)
    except _Problem as error:
        refuse(name, str(error), _code(error))


def _code(error: _Problem) -> str:
    return "json.too-large" if isinstance(error, _TooLarge) else "json.refused"


def value_cost(data: bytes) -> int:
    """Return an upper bound in bytes of the memory for the values of a text. Does not parse it."""
    structure = _structure(data)
    return _cost(structure, structure.count(b"{") + structure.count(b"["))


def _check_structure(data: bytes, *, nesting: bool = True) -> None:
    """Refuse deep nesting, and more values than fit `BUDGET`, before the parser builds them."""
    containers = data.count(b"{") + data.count(b"[")
    if containers <= MAX_DEPTH and _cost(data, containers) <= BUDGET:
        return
    structure = _structure(data)
    containers = structure.count(b"{") + structure.count(b"[")
    if _cost(structure, containers) > BUDGET:
        raise _TooLarge(f"its {structure.count(b',') + containers:,} values need too much memory")
    if not nesting or containers <= MAX_DEPTH:
        return
    brackets = structure.translate(_BRACKETS, b",:")
    for _ in range(MAX_DEPTH):  # one level in each pass
        brackets = brackets.replace(b"[]", b"")
    if b"[]" in brackets or brackets.count(b"[") > MAX_DEPTH:
        raise _Problem(f"it is nested more than {MAX_DEPTH} levels deep")


def _cost(structure: bytes, containers: int) -> int:
    """Return an upper bound in bytes of the memory for the values of a text, with or without its strings."""
    return containers * _CONTAINER_COST + structure.count(b":") * _MEMBER_COST + structure.count(b",") * _VALUE_COST


def _structure(data: bytes) -> bytes:
    """Return the brackets, commas and colons of ``data`` that are outside strings."""
    if b"\\" not in data:
        # Without escapes every quote opens or closes a string, so `""` can be removed. Most strings have become `""`.
        data = data.translate(None, _PLAIN).replace(b'""', b"")
    if b'"' in data:
        data = re.sub(_STRING_OR_PLAIN, b"", data, flags=re.DOTALL)
    return data


_SURROGATE = r"\\u[dD][89a-fA-F]"


def _check_surrogates(text: str, value: object) -> None:
    """Refuse half of a surrogate pair, which UTF-8 cannot encode."""
    if "\\u" not in text or not re.search(_SURROGATE, text):
        return
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        raise _Problem("a string holds half of a surrogate pair") from error


def refuse(name: str, why: str, code: str) -> NoReturn:
    """Raise `UnreadableError` for a text that is not accepted as JSON."""
    raise UnreadableError(
        f"{shown(name)} cannot be read as JSON: {why}", "restore the file, or fetch or save it again", code
    )
