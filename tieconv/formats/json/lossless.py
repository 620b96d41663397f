"""Read and write JSON with its numbers spelled as they were.

Python numbers would change `1.10`, `NaN` and numbers of thirty digits. `write` returns them unchanged.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from tieconv.checkpoint.value_type import record
from tieconv.formats.json.strict import loads


@record
class Number:
    """A number, `NaN` or `Infinity`, kept as text."""

    text: str


def read(data: bytes, name: str, *, limit: int) -> dict[str, object]:
    """Read the object in ``data``, with each number as a `Number`. The last value of a repeated key counts.

    Raises `UnreadableError` for malformed JSON, and for JSON beyond the limits of `tieconv.formats.json.strict`.
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
