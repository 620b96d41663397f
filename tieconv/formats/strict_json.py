"""One JSON loader for every document: size, depth, integer and duplicate-key limits, strict UTF-8.

The standard parser accepts duplicate keys (the last wins) and NaN; both let one file mean two things
to two readers, so weights and indexes refuse them. Configs may carry them: real ones do.
"""

from __future__ import annotations

import json
import re
from typing import NoReturn

from tieconv.errors import UnreadableError
from tieconv.text import shown

MAX_DEPTH = 64
MAX_INTEGER_DIGITS = 20  # a uint64 has 20


class _Problem(ValueError):
    """A fault inside a JSON text; becomes an `UnreadableError` that names the file."""


def loads(
    data: bytes, name: str, *, limit: int, lenient: bool = False, duplicates: list[str] | None = None
) -> dict[str, object]:
    """The JSON object in ``data``.

    ``limit`` is the largest size in bytes; ``lenient`` accepts NaN and Infinity and, for repeated keys,
    keeps the last value and appends the key to ``duplicates``. Raises `UnreadableError` naming ``name``.
    """
    if len(data) > limit:
        raise UnreadableError(
            f"{shown(name)}: the JSON takes {len(data):,} bytes, more than the {limit:,} that are read",
            "a file of this size is no config, index or header",
            "json.too-large",
        )

    def pairs(items: list[tuple[str, object]]) -> dict[str, object]:
        found = dict(items)
        if len(found) != len(items):
            seen: set[str] = set()
            repeated = next(key for key, _ in items if key in seen or seen.add(key))  # type: ignore[func-returns-value]
            if not lenient:
                raise _Problem(f"the key {shown(repeated)} stands twice")
            if duplicates is not None:
                duplicates.append(repeated)
        return found

    def constant(text: str) -> float:
        if lenient:
            return float(text.replace("Infinity", "inf"))
        raise _Problem(f"{text} is no JSON number")

    try:
        text = data.decode("utf-8", errors="strict")
        _check_depth(text)
        value = json.loads(text, object_pairs_hook=pairs, parse_constant=constant, parse_int=_integer)
    except UnicodeDecodeError as error:
        _refuse(name, f"byte {error.start} is not UTF-8", "json.not-utf8")
    except json.JSONDecodeError as error:
        _refuse(name, f"line {error.lineno}, column {error.colno}: {error.msg}", "json.malformed")
    except (_Problem, RecursionError) as error:
        _refuse(name, str(error) or "nested too deeply", "json.refused")
    if not isinstance(value, dict):
        _refuse(name, f"holds {type(value).__name__} where an object is expected", "json.not-an-object")
    return value


def _integer(digits: str) -> int:
    if len(digits.lstrip("-")) > MAX_INTEGER_DIGITS:
        raise _Problem(f"an integer of {len(digits)} digits")
    return int(digits)


_FLAT = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[^{}\[\]"]+', re.DOTALL)


def _check_depth(text: str) -> None:
    """Refuse deep nesting before the parser recurses into it."""
    if text.count("{") + text.count("[") <= MAX_DEPTH:
        return
    depth = 0
    for bracket in _FLAT.sub("", text):
        depth += 1 if bracket in "{[" else -1
        if depth > MAX_DEPTH:
            raise _Problem(f"nested more than {MAX_DEPTH} deep")


def _refuse(name: str, why: str, code: str) -> NoReturn:
    raise UnreadableError(f"{shown(name)} is not readable as JSON: {why}", "", code)
