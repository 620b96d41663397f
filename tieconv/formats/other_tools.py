"""Recognise files of other tools by their first bytes, the names in an archive or a directory, or their suffix.

The patterns are in `data/other_tools.json`, each with its source.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import cache
from typing import Any

from tieconv.checkpoint.value_type import record
from tieconv.package_data import data_text

WINDOW = 1024
"""Bytes at the start of a file that identify its kind."""


@record
class OtherTool:
    """A kind of file that tieconv does not read.

    ``sentence_end`` follows the file name in an error; ``hint`` says what to do instead.
    """

    code: str
    sentence_end: str
    hint: str


def by_content(start: bytes) -> OtherTool | None:
    """Return the kind of a file that begins with ``start``."""
    return _find("start", start[:WINDOW].decode("latin-1"))


def by_entries(names: bytes) -> OtherTool | None:
    """Return the kind of a zip archive whose entries have ``names``, each followed by a newline."""
    return _find("entries", names.decode("latin-1"))


def by_name(name: str) -> OtherTool | None:
    """Return the kind of a file by its suffix."""
    return next((kind for ends, kind in _kinds()["ends"] if name.lower().endswith(ends)), None)


def by_directory(paths: Iterable[str]) -> OtherTool | None:
    """Return the kind of a directory with files at ``paths``."""
    return _find("inside", "".join(f"{path}\n" for path in paths))


def _find(key: str, text: str) -> OtherTool | None:
    search = re.Pattern.match if key == "start" else re.Pattern.search
    return next((kind for pattern, kind in _kinds()[key] if search(pattern, text)), None)


@cache
def _kinds() -> dict[str, list[tuple[Any, OtherTool]]]:
    patterns: dict[str, list[tuple[Any, OtherTool]]] = {"start": [], "entries": [], "inside": [], "ends": []}
    for entry in json.loads(data_text(__name__, "other_tools.json"))["kinds"]:
        kind = OtherTool(entry["code"], entry["what"], entry["hint"])
        for key in patterns.keys() & entry.keys():
            patterns[key].append((_pattern(key, entry), kind))
    return patterns


def _pattern(key: str, entry: dict[str, Any]) -> Any:
    if key == "ends":
        return tuple(map(str.lower, entry[key]))
    if key == "inside":
        return re.compile(entry[key], re.MULTILINE)
    return re.compile(entry[key], re.DOTALL | (re.IGNORECASE if entry["code"] == "html" else 0))
