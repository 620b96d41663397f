"""One JSON loader for every document: size, depth, integer and duplicate-key limits, strict UTF-8.

The standard parser accepts duplicate keys (the last wins) and NaN; both let one file mean two things
to two readers, so weights and indexes refuse them. Configs may carry them: real ones do.
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
"""Bytes of memory that the values of one document may take."""
_CONTAINER_COST, _MEMBER_COST, _VALUE_COST = 80, 190, 60
"""Bytes that the smallest list or object, the smallest member and the smallest value take while they are parsed."""


@contextmanager
def collector_paused() -> Iterator[None]:
    """No garbage collection inside: millions of new objects without a cycle would be looked through again and again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class _Problem(ValueError):
    """A fault inside a JSON text; becomes an `UnreadableError` that names the file."""


class _TooLarge(_Problem):
    """A JSON text whose values take more memory than `BUDGET`."""


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
    """The JSON object in ``data``.

    ``limit`` is the largest size in bytes, ``digits`` that of an integer; ``lenient`` accepts NaN, Infinity and lone
    surrogates and, for repeated keys, keeps the last value and appends the key to ``duplicates``. ``numbers`` makes
    of each number's spelling what stands for it, whatever its size. Raises `UnreadableError` naming ``name``.
    """
    if len(data) > limit:
        raise UnreadableError(
            f"{shown(name)}: the JSON takes {len(data):,} bytes, more than the {limit:,} that are read",
            "a file of this size is no config, index or header",
            "json.too-large",
        )

    def pairs(items: list[tuple[str, object]]) -> dict[str, object]:
        members = dict(items)
        if len(members) != len(items):
            seen: set[str] = set()
            repeated = next(key for key, _ in items if key in seen or seen.add(key))  # type: ignore[func-returns-value]
            if not lenient:
                raise _Problem(f"the key {shown(repeated)} stands twice")
            if duplicates is not None:
                duplicates.append(repeated)
        return members

    def constant(text: str) -> float:
        if lenient:
            return float(text.replace("Infinity", "inf"))
        raise _Problem(f"{text} is no JSON number")

    def decimal(text: str) -> float:
        number = float(text)
        if isinf(number) and not lenient:
            raise _Problem(f"{shown(text, 40)} is larger than any number")
        return number

    def integer(text: str) -> int | float:
        if len(text.lstrip("-")) > digits:
            raise _Problem(f"an integer of {len(text)} digits")
        # Minus zero is no integer to the reference reader of safetensors.
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
    if not isinstance(value, dict):
        refuse(name, f"holds {_KINDS.get(type(value), 'a number')} where an object is expected", "json.not-an-object")
    return value


_KINDS = {list: "a list", str: "a string", int: "a number", float: "a number", bool: "a boolean", type(None): "null"}


_DIGITS = bytes.maketrans(b"123456789", b"0" * 9)


def _may_hold_odd_integers(data: bytes, digits: int) -> bool:
    """Whether each has to be looked at: a call for each of millions costs more than this search."""
    return b"-0" in data or b"0" * (digits + 1) in data.translate(_DIGITS)


_BRACKETS = bytes.maketrans(b"{}", b"[]")
_STRUCTURE = b"{}[],:"
_PLAIN = bytes(code for code in range(256) if code not in _STRUCTURE + b'"')
# Every alternative takes at least the character that it starts at and gives none back, so that text that was made
# to be slow (an open string of escaped quotes) takes one pass like any other.
_STRING_OR_PLAIN = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[^{}\[\],:"]++'


def check_budget(data: bytes, name: str) -> None:
    """Refuse a text, or a part of one, whose values would take more memory than `BUDGET`, before they are made."""
    try:
        _check_structure(data, nesting=False)
    except _Problem as error:
        refuse(name, str(error), _code(error))


def _code(error: _Problem) -> str:
    return "json.too-large" if isinstance(error, _TooLarge) else "json.refused"


def value_cost(data: bytes) -> int:
    """An upper bound of the memory for the values of a text, before they are made."""
    structure = _structure(data)
    return _cost(structure, structure.count(b"{") + structure.count(b"["))


def _check_structure(data: bytes, *, nesting: bool = True) -> None:
    """Refuse deep nesting, and more values than `BUDGET` holds, before the parser builds them."""
    containers = data.count(b"{") + data.count(b"[")
    if containers <= MAX_DEPTH and _cost(data, containers) <= BUDGET:
        return
    structure = _structure(data)
    containers = structure.count(b"{") + structure.count(b"[")
    if _cost(structure, containers) > BUDGET:
        raise _TooLarge(f"its {structure.count(b',') + containers:,} values take too much memory")
    if not nesting or containers <= MAX_DEPTH:
        return
    brackets = structure.translate(_BRACKETS, b",:")
    for _ in range(MAX_DEPTH):  # one level a round
        brackets = brackets.replace(b"[]", b"")
    if b"[]" in brackets or brackets.count(b"[") > MAX_DEPTH:
        raise _Problem(f"nested more than {MAX_DEPTH} deep")


def _cost(structure: bytes, containers: int) -> int:
    """An upper bound of the memory for the values of a text, with or without its strings."""
    return containers * _CONTAINER_COST + structure.count(b":") * _MEMBER_COST + structure.count(b",") * _VALUE_COST


def _structure(data: bytes) -> bytes:
    """The brackets, commas and colons of ``data`` that are outside strings."""
    if b"\\" not in data:
        # Without escapes every quote opens or closes, so two that meet may go: what is left of most strings.
        data = data.translate(None, _PLAIN).replace(b'""', b"")
    if b'"' in data:
        data = re.sub(_STRING_OR_PLAIN, b"", data, flags=re.DOTALL)
    return data


_SURROGATE = r"\\u[dD][89a-fA-F]"


def _check_surrogates(text: str, value: object) -> None:
    """Refuse half of a surrogate pair: a string that has no UTF-8."""
    if "\\u" not in text or not re.search(_SURROGATE, text):
        return
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        raise _Problem("half of a surrogate pair stands in a string") from error


def refuse(name: str, why: str, code: str) -> NoReturn:
    """Raise `UnreadableError` for a text that is not JSON as it is accepted here."""
    raise UnreadableError(
        f"{shown(name)} is not readable as JSON: {why}", "restore the file, or fetch or save it again", code
    )
