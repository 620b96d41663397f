"""Read and extend files of JSON lines. A killed run may leave the last line unfinished."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Mapping
from typing import Any

from tieconv.errors import DestinationError, SettingsError
from tieconv.sources.texts import read_text
from tieconv.text import shown


class LineFile:
    """A file of one JSON object a line, each with the same ``schema``."""

    def __init__(self, path: str, schema: str) -> None:
        self._path, self._schema = path, schema
        self._end, self._whole = 0, True

    def read(self, use: Callable[[Mapping[str, Any]], object]) -> None:
        """Call ``use`` with each object, if the file exists. An unfinished last line does not count.

        Raises `SettingsError` for a line that is not such an object, or for which ``use`` raises ``ValueError``,
        ``KeyError`` or ``TypeError``.
        """
        if not os.path.lexists(self._path):
            return
        text = read_text(self._path)
        self._end = len(text[: text.rfind("\n") + 1].encode())
        self._whole = not text or text.endswith("\n")
        lines = text.split("\n")
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                use(parse_line(line, self._schema))
            except (ValueError, KeyError, TypeError) as error:
                if number == len(lines) and number > 1:  # a run that was killed while it wrote
                    continue
                raise malformed(self._path, self._schema, number) from error

    def append(self, entry: Mapping[str, object]) -> None:
        """Append an object as a line, after removing an unfinished one. Raises `DestinationError`."""
        append_bytes(self._path, line_of(entry, self._schema), None if self._whole else self._end)
        self._whole = True


def line_of(entry: Mapping[str, object], schema: str) -> bytes:
    """Return an object as a line."""
    return json.dumps({"schema": schema, **entry}).encode() + b"\n"


def parse_line(line: str | bytes, schema: str) -> dict[str, Any]:
    """Return the object of a line. Raises ``ValueError``, ``KeyError`` or ``TypeError`` for others."""
    try:
        entry: dict[str, Any] = json.loads(line)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if entry["schema"] != schema:
        raise ValueError(f"not a {schema}")
    return entry


def append_bytes(path: str, data: bytes, end: int | None = None) -> None:
    """Append to a file, after cutting it to ``end`` bytes if that is given. Raises `DestinationError`."""
    try:
        with open(path, "ab") as file:
            _check_own(path, os.fstat(file.fileno()))
            if end is not None:
                file.truncate(end)
            file.write(data)
    except OSError as error:
        raise unwritable(path, error) from error


def malformed(path: str, schema: str, number: int) -> SettingsError:
    """Return the error for a line that is not such an object."""
    return SettingsError(
        f"{shown(path)} is not a {schema} file: line {number} cannot be read",
        "give another file, or remove this one",
        "run.malformed",
    )


def unwritable(path: str, error: OSError) -> DestinationError:
    """Return the error for a file or directory that the system does not let tieconv write."""
    reason = (error.strerror or "unknown error").lower()
    return DestinationError(
        f"{shown(path)} cannot be written: {reason}", "check the path and its directory", "out.text"
    )


def _check_own(path: str, status: os.stat_result) -> None:
    """Raise `DestinationError` for a hard link, whose other names would change too."""
    if stat.S_ISREG(status.st_mode) and status.st_nlink > 1:
        raise DestinationError(
            f"tieconv does not append to {shown(path)}: it is a hard link to another file",
            "give another file",
            "out.text",
        )
