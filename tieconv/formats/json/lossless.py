"""JSON read and written with its numbers as they are spelled, for what one program passes on for another.

A total of thirty digits, `1.10` and `NaN` are no plain numbers of Python, and come out of `write` as they went in.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from tieconv.checkpoint.value_type import record
from tieconv.formats.json.strict import loads


@record
class Number:
    """A number, or `NaN` and the like, by its characters."""

    text: str


def read(data: bytes, name: str, *, limit: int) -> dict[str, object]:
    """The object in ``data``, of repeated keys the last, each number as a `Number`.

    Raises `UnreadableError` for what no reader of JSON takes, and beyond the limits of `strict_json`.
    """
    return loads(data, name, limit=limit, lenient=True, numbers=Number)


def write(value: object, *, sort_keys: bool = False, indent: str = "") -> str:
    """``value`` as `json.dumps` with an indent of two gives it, a `Number` as it was spelled."""
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
