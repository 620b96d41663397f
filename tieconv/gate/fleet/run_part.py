"""One part of a run: JSON lines as models finish, and the list of its models."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

from tieconv.checkpoint.results.checked import Failure
from tieconv.checkpoint.value_type import record
from tieconv.errors import SettingsError
from tieconv.gate.fleet.listed_content import ListedContent
from tieconv.sources.line_file import append_bytes, line_of, malformed, parse_line, unwritable
from tieconv.sources.texts import write_text
from tieconv.text import shown
from tieconv.version import VERSION

LIST, LINES = ".list", ".jsonl"


class Failing(Protocol):
    """A result that may be a failure."""

    @property
    def source(self) -> str:
        """The model."""
        ...

    @property
    def failure(self) -> Failure | None:
        """Why there is no result."""
        ...


R = TypeVar("R", bound=Failing)


@record
class LineFormat(Generic[R]):
    """How a result becomes the object of a line, and the other way.

    ``entry(result, asked, **listed)`` returns the object. ``parse`` raises ``ValueError``, ``KeyError`` or
    ``TypeError`` for an object that is not one.
    """

    schema: str
    entry: Callable[..., dict[str, object]]
    parse: Callable[[Mapping[str, Any]], R]


class RunPart(Generic[R]):
    """The results of one part of a run of ``verb``. Only this process writes them.

    ``known`` maps each model that has a result with the same options to its fingerprint. ``seen`` is called with each
    such result, and with each that is added.
    """

    def __init__(
        self,
        directory: str,
        verb: str,
        part: tuple[int, int],
        asked: Mapping[str, object],
        form: LineFormat[R],
        seen: Callable[[R], object] = lambda _: None,
    ) -> None:
        name = verb if part == (1, 1) else f"{verb}-{part[0]}-of-{part[1]}"
        self._path = os.path.join(directory, f"{name}{LINES}")
        self._list = os.path.join(directory, f"{name}{LIST}")
        self._asked = {"tieconv": VERSION, **asked}
        self._form, self._seen = form, seen
        options = _as_json(asked)
        try:
            os.makedirs(directory, exist_ok=True)
        except OSError as error:
            raise unwritable(directory, error) from error
        self.known: dict[str, str] = {}
        self._end = 0
        if os.path.lexists(self._path):
            for line in read_lines(self._path, form):
                self._end = line.end
                read = (line.version, line.options) == (VERSION, options) and line.result.failure is None
                self.known[line.result.source] = line.fingerprint if read else ""
                if read:
                    seen(line.result)

    def start(self, sources: Sequence[str]) -> None:
        """Write the list of models, and remove the unfinished line of a run that was killed."""
        write_text(self._list, json.dumps(sources, indent=0))
        append_bytes(self._path, b"", self._end)

    def add(self, result: R, content: ListedContent, finished: float) -> None:
        """Append a result. Raises `DestinationError`."""
        entry = self._form.entry(
            result, self._asked, fingerprint=content.fingerprint, bytes=content.bytes, finished=round(finished, 3)
        )
        append_bytes(self._path, line_of(entry, self._form.schema))
        self._seen(result)


@record
class RunLine(Generic[R]):
    """A whole line of results.

    ``version`` is of tieconv. ``options`` are those of the run, as JSON. ``end`` is the offset of the line's end.
    """

    result: R
    bytes: int
    finished: float
    version: str
    options: str
    fingerprint: str
    end: int


def read_lines(path: str, form: LineFormat[R]) -> Iterator[RunLine[R]]:
    """Yield each whole line. Skips an unfinished last line. Raises `SettingsError`."""
    end = 0
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    return
                end += len(line)
                try:
                    parsed = _parsed(line, end, form)
                except (ValueError, KeyError, TypeError) as error:
                    raise malformed(path, form.schema, number) from error
                yield parsed
    except OSError as error:
        raise SettingsError(
            f"{shown(path)} cannot be read: {(error.strerror or '').lower()}", "check the path"
        ) from error


def _parsed(line: bytes, end: int, form: LineFormat[R]) -> RunLine[R]:
    """Return the result of a line. Raises ``ValueError``, ``KeyError`` or ``TypeError`` for others."""
    entry = parse_line(line, form.schema)
    options = {**entry["asked"]}
    version = str(options.pop("tieconv", ""))
    return RunLine(
        form.parse(entry),
        int(entry.get("bytes", 0)),
        float(entry.get("finished", 0)),
        version,
        _as_json(options),
        str(entry.get("fingerprint", "")),
        end,
    )


def _as_json(options: Mapping[str, object]) -> str:
    return json.dumps(options, sort_keys=True)
