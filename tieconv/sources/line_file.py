"""Read and extend a file of JSON lines. A killed run may leave its last line unfinished."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

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
                entry = json.loads(line)
                if entry["schema"] != self._schema:
                    raise ValueError(f"not a {self._schema}")
                use(entry)
            except (ValueError, KeyError, TypeError) as error:
                if number == len(lines) and number > 1:  # a run that was killed while it wrote
                    continue
                self._refuse(number, error)

    def _refuse(self, number: int, error: Exception) -> NoReturn:
        raise SettingsError(
            f"{shown(self._path)} is not a {self._schema} file: line {number} cannot be read",
            "give another file, or remove this one",
            "run.malformed",
        ) from error

    def append(self, entry: Mapping[str, object]) -> None:
        """Append an object as a line, after removing an unfinished one. Raises `DestinationError`."""
        data = json.dumps({"schema": self._schema, **entry}).encode() + b"\n"
        try:
            with open(self._path, "ab") as file:
                _check_own(self._path, os.fstat(file.fileno()))
                if not self._whole:  # an unfinished line of a killed run
                    file.truncate(self._end)
                    self._whole = True
                file.write(data)
        except OSError as error:
            reason = (error.strerror or "unknown error").lower()
            raise DestinationError(
                f"{shown(self._path)} cannot be written: {reason}", "check the path and its directory", "out.text"
            ) from error


def _check_own(path: str, status: os.stat_result) -> None:
    """Raise `DestinationError` for a hard link, whose other names would change too."""
    if stat.S_ISREG(status.st_mode) and status.st_nlink > 1:
        raise DestinationError(
            f"tieconv does not append to {shown(path)}: it is a hard link to another file",
            "give another file",
            "out.text",
        )
