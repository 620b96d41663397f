"""Parse JSON and TOML that people hand in: settings, baselines, lists, token ids, and results of earlier runs.

Such a file may be part of an unpacked archive. Each function raises ``ValueError`` with the reason if it refuses a
document, and the caller names the file. Whoever then takes values out of it catches `tieconv.errors.MALFORMED`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from tieconv.errors import UnreadableError
from tieconv.formats.json.strict import loads_any

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
