"""Load every JSON document with limits on size, depth and integers, without repeated keys, as strict UTF-8.

Python's parser accepts NaN and repeated keys, of which the last value counts. Other parsers read such files
differently, so tieconv refuses them in headers and indexes. Configs may hold them, because real configs do.
"""

from __future__ import annotations

import gc
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from math import isinf
from typing import Any, NoReturn

from tieconv.checkpoint.value_type import record
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

    code = "json.refused"


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
        problem = f"{shown(name)} has {len(data):,} bytes of JSON, more than the limit of {limit:,}"
        hint = "check the file: a config, index or header is never this large"
        raise UnreadableError(problem, hint, "json.too-large")

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
                # This search is faster than millions of checks of integers.
                parse_int=numbers
                or (integer if b"-0" in data or b"0" * (digits + 1) in data.translate(_DIGITS) else None),
                parse_float=numbers or decimal,
            )
        if not lenient:
            _check_surrogates(text, value)
    except UnicodeDecodeError as error:
        refuse(name, f"byte {error.start} is not UTF-8", "json.not-utf8")
    except json.JSONDecodeError as error:
        refuse(name, f"line {error.lineno}, column {error.colno}: {error.msg}", "json.malformed")
    except _Problem as error:
        refuse(name, str(error), error.code)
    return value


_KINDS = {list: "a list", str: "a string", int: "a number", float: "a number", bool: "a boolean", type(None): "null"}


_DIGITS = bytes.maketrans(b"123456789", b"0" * 9)


_BRACKETS = bytes.maketrans(b"{}", b"[]")
_STRUCTURE = b"{}[],:"
_PLAIN = bytes(code for code in range(256) if code not in _STRUCTURE + b'"')
# Every alternative consumes at least one character and never backtracks. So a hostile text, such as an open string
# of escaped quotes, needs one pass too.
_STRING_OR_PLAIN = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[^{}\[\],:"]++'


def check_part(data: bytes, name: str) -> None:
    """Refuse a part of a text with deep nesting, or whose values would need more memory than `BUDGET`."""
    try:
        _check_structure(data)
    except _Problem as error:
        refuse(name, str(error), error.code)


def value_cost(data: bytes) -> int:
    """Return an upper bound in bytes of the memory for the values of a text. Does not parse it."""
    structure = _structure(data)
    return _cost(structure, structure.count(b"{") + structure.count(b"["))


def _check_structure(data: bytes) -> None:
    """Refuse deep nesting, and more values than fit `BUDGET`, before the parser builds them."""
    containers = data.count(b"{") + data.count(b"[")
    if containers <= MAX_DEPTH and _cost(data, containers) <= BUDGET:
        return
    structure = _structure(data)
    containers = structure.count(b"{") + structure.count(b"[")
    if _cost(structure, containers) > BUDGET:
        problem = _Problem(f"its {structure.count(b',') + containers:,} values need too much memory")
        problem.code = "json.too-large"
        raise problem
    if containers <= MAX_DEPTH:
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


def _check_surrogates(text: str, value: object) -> None:
    """Refuse half of a surrogate pair, which UTF-8 cannot encode."""
    if "\\u" not in text or not re.search(r"\\u[dD][89a-fA-F]", text):
        return
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        raise _Problem("a string holds half of a surrogate pair") from error


def refuse(name: str, why: str, code: str) -> NoReturn:
    """Raise `UnreadableError` for a text that is not accepted as JSON."""
    problem = f"{shown(name)} cannot be read as JSON: {why}"
    raise UnreadableError(problem, "restore the file, or fetch or save it again", code)


# Read and write JSON with its numbers spelled as they were.
#
# Python numbers would change `1.10`, `NaN` and numbers of thirty digits. `write` returns them unchanged.
@record
class Number:
    """A number, `NaN` or `Infinity`, kept as text."""

    text: str


def read(data: bytes, name: str, *, limit: int) -> dict[str, object]:
    """Read the object in ``data``, with each number as a `Number`. The last value of a repeated key counts.

    Raises `UnreadableError` for malformed JSON, and for JSON beyond the limits of `loads`.
    """
    return loads(data, name, limit=limit, lenient=True, numbers=Number)


def write(value: object, *, sort_keys: bool = False, indent: str = "") -> str:
    """Return ``value`` as `json.dumps` with an indent of two writes it, and each `Number` as it was spelled."""
    deeper = f"{indent}  "
    if isinstance(value, Number):
        return value.text
    if isinstance(value, Mapping) and value:
        keys = sorted(value) if sort_keys else value
        lines = [f"{json.dumps(key)}: {write(value[key], sort_keys=sort_keys, indent=deeper)}" for key in keys]
        return _block("{}", lines, indent)
    if isinstance(value, list) and value:
        return _block("[]", [write(entry, sort_keys=sort_keys, indent=deeper) for entry in value], indent)
    return json.dumps(value)


def _block(brackets: str, lines: list[str], indent: str) -> str:
    body = f",\n{indent}  ".join(lines)
    return f"{brackets[0]}\n{indent}  {body}\n{indent}{brackets[1]}"


# Parse JSON and TOML that people hand in: settings, baselines, lists, token ids, and results of earlier runs.
#
# Such a file may be part of an unpacked archive. Each function raises ``ValueError`` with the reason if it refuses a
# document, and the caller names the file. Whoever then takes values out of it catches `tieconv.errors.MALFORMED`.

MOST_BYTES = (1 << 63) - 1
"""The largest number of bytes that a file system, Parquet and SQL can state."""
LAST_SECOND = 253_402_300_799
"""The end of the year 9999, in seconds since 1970: no calendar of Python goes further."""
_PARTS = 64
# tomllib takes cubic time for one dotted key: 16,000 parts in 32 kB take 14 s.
_LONG_KEY = re.compile(rf"(?<![\w-])[\w-]++(?:[ \t]*+\.[ \t]*+[\w-]++){{{_PARTS}}}")
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*+"|' r"'[^']*+'")


def parse_json(data: bytes, limit: int) -> object:
    """Return a JSON value of at most ``limit`` bytes, with the bounds of `loads_any` and without repeated keys.

    NaN and Infinity are floats: `whole` and `real` refuse them where a number counts.
    """
    repeated: list[str] = []
    try:
        value = loads_any(data, "the text", limit=limit, lenient=True, duplicates=repeated)
    except UnreadableError as error:
        raise ValueError(error.message.removeprefix("the text cannot be read as JSON: ")) from error
    if repeated:
        raise ValueError(f"the key {repeated[0]} is repeated")
    return value


def parse_toml(text: str) -> dict[str, object]:
    """Return the table in a TOML text."""
    import tomllib

    for number, line in enumerate(text.split("\n"), 1):
        if line.count(".") >= _PARTS and _LONG_KEY.search(_QUOTED.sub("q", line)):
            raise ValueError(f"a key with more than {_PARTS} parts (at line {number})")
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise ValueError("too many nested tables or arrays") from error


def line_of(entry: Mapping[str, object], schema: str) -> bytes:
    """Return an object as a line of results."""
    return json.dumps({"schema": schema, **entry}).encode() + b"\n"


def parse_line(line: bytes, schema: str) -> dict[str, Any]:
    """Return the object of a line that `line_of` made. Raises one of `MALFORMED` for others."""
    entry: Any = parse_json(line, len(line))
    if entry["schema"] != schema:
        raise ValueError(f"not a {schema}")
    return dict(entry)


def whole(value: object, most: int = MOST_BYTES) -> int:
    """Return an integer of 0 to ``most``. Raises ``ValueError`` for any other value."""
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError("a number is not whole, or out of range")
    return value


def real(value: object, most: float) -> float:
    """Return a number of 0 to ``most``. Raises ``ValueError`` for any other value, NaN too."""
    if type(value) not in (int, float) or not 0 <= value <= most:  # type: ignore[operator]
        raise ValueError("a number is out of range")
    return float(value)  # type: ignore[arg-type]
