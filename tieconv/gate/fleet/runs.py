"""RUNS, the directory of a run over many models: a line for each result, and the list of models.

Each part of a run has its own two files, such as `check.jsonl` and `check.list`. RUNS may be an unpacked artifact of a
CI job. So tieconv reads it as a hostile input, and writes through no symlink in it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from tieconv.checkpoint.results.checked import CheckedModel, Failure
from tieconv.checkpoint.value_type import record
from tieconv.errors import SettingsError
from tieconv.formats.strict_json import LAST_SECOND, line_of, parse_json, parse_line, real, whole
from tieconv.gate.fleet.listed_content import ListedContent
from tieconv.gate.run_file import RUN_SCHEMA, entry_of, model_of
from tieconv.sources.user_files import LIMIT, LineFile, read_bytes, unwritable, write_text
from tieconv.text import shell_word, shown
from tieconv.version import VERSION

LIST, LINES = ".list", ".jsonl"
_OURS = re.compile(r"check(-[1-9]\d{0,5}-of-[1-9]\d{0,5})?\.(list|jsonl)")


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

    ``entry(result, asked, **listed)`` returns the object. ``parse`` raises one of `MALFORMED` for an object that is not
    one. ``failed(source, failure)`` is a result without an answer. ``is_kept(result, directory)`` is
    whether the directory still has what was written for the model.
    """

    schema: str
    entry: Callable[..., dict[str, object]]
    parse: Callable[[Mapping[str, Any]], R]
    failed: Callable[[str, Failure], R]
    is_kept: Callable[[R, str], bool] = lambda result, directory: True


def _unread(source: str, failure: Failure) -> CheckedModel:
    return CheckedModel(source, failure=failure)


CHECKED: LineFormat[CheckedModel] = LineFormat(RUN_SCHEMA, entry_of, model_of, _unread)


@record
class RunLine(Generic[R]):
    """A whole line of results. ``version`` is of tieconv. ``options`` are those of the run, as JSON."""

    result: R
    bytes: int
    finished: float
    version: str
    options: str
    fingerprint: str


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
        self._list = os.path.join(directory, f"{name}{LIST}")
        self._asked = {"tieconv": VERSION, **asked}
        self._form, self._seen = form, seen
        options = _as_json(asked)
        try:
            os.makedirs(directory, exist_ok=True)
        except OSError as error:
            raise unwritable(directory, error) from error
        self.known: dict[str, str] = {}
        self._file = LineFile(os.path.join(directory, f"{name}{LINES}"), form.schema)
        for line in self._file.read(partial(_parsed, form)):
            read = (line.version, line.options) == (VERSION, options) and line.result.failure is None
            read = read and form.is_kept(line.result, os.path.join(directory, verb))
            self.known[line.result.source] = line.fingerprint if read else ""
            if read:
                seen(line.result)

    def start(self, sources: Sequence[str]) -> None:
        """Write the list of models, and remove the unfinished line of a run that was killed."""
        write_text(self._list, json.dumps(sources, indent=0))
        self._file.append(b"")

    def add(self, result: R, content: ListedContent, finished: float) -> None:
        """Append a result; one that is too large to be read again becomes a failure. Raises `DestinationError`."""
        line = self._line(result, content, finished)
        try:
            parse_json(line, LIMIT)
        except ValueError as error:
            why = Failure(f"{shown(result.source)}: its result cannot be kept: {error}", "run the command on it alone")
            result = self._form.failed(result.source, why)
            line = self._line(result, content, finished)
        self._file.append(line)
        self._seen(result)

    def _line(self, result: R, content: ListedContent, finished: float) -> bytes:
        entry = self._form.entry(
            result, self._asked, fingerprint=content.fingerprint, bytes=content.bytes, finished=round(finished, 3)
        )
        return line_of(entry, self._form.schema)


def read_lines(path: str, form: LineFormat[R]) -> Iterator[RunLine[R]]:
    """Yield each whole line. Skips an unfinished last line. Raises `SettingsError`."""
    return LineFile(path, form.schema).read(partial(_parsed, form))


def _parsed(form: LineFormat[R], line: bytes) -> RunLine[R]:
    """Return the result of a line. Raises one of `MALFORMED` for others."""
    entry = parse_line(line, form.schema)
    options = {**entry["asked"]}
    version = str(options.pop("tieconv", ""))
    size, finished = whole(entry.get("bytes", 0)), real(entry.get("finished", 0), LAST_SECOND)
    fingerprint = str(entry.get("fingerprint", ""))
    return RunLine(form.parse(entry), size, finished, version, _as_json(options), fingerprint)


def _as_json(options: Mapping[str, object]) -> str:
    return json.dumps(options, sort_keys=True)


@record
class FinishedModel:
    """A model of a run: its findings, the size of its files, and when it was read (seconds since 1970)."""

    model: CheckedModel
    bytes: int
    finished: float


@record
class FleetRun:
    """The results in a directory.

    ``models`` maps each model of the lists that is finished to its last result. ``unfinished`` counts the others.
    ``options`` are those of the run, as JSON.
    """

    directory: str
    models: Mapping[str, FinishedModel]
    unfinished: int
    options: str


def read_run(directory: str) -> FleetRun:
    """Return the results in a directory. Raises `SettingsError` if there are none, or of different options."""
    names = _names(directory)
    listed = [source for name in names if name.endswith(LIST) for source in _listed(os.path.join(directory, name))]
    wanted = set(listed)
    models: dict[str, FinishedModel] = {}
    options: dict[str, str] = {}
    for name in names:
        if not name.endswith(LINES):
            continue
        for line in read_lines(os.path.join(directory, name), CHECKED):
            source = line.result.source
            if source in wanted and (source not in models or models[source].finished <= line.finished):
                models[source] = FinishedModel(line.result, line.bytes, line.finished)
                options[source] = line.options
    different = set(options.values())
    if len(different) > 1:
        raise SettingsError(
            f"{shown(directory)} holds results of runs with different options",
            "finish the last run, so that every model is read with its options",
            "fleet.mixed",
        )
    ordered = {source: models[source] for source in sorted(models)}
    return FleetRun(directory, ordered, len(wanted) - len(models), next(iter(different), ""))


def _names(directory: str) -> list[str]:
    try:
        names = sorted(name for name in os.listdir(directory) if _OURS.fullmatch(name))
    except OSError as error:
        raise SettingsError(
            f"{shown(directory)} cannot be read: {(error.strerror or 'unknown error').lower()}",
            "give the directory that `tieconv fleet check -o` wrote",
            "fleet.directory",
        ) from error
    if not any(name.endswith(LIST) for name in names):
        raise SettingsError(
            f"{shown(directory)} holds no run",
            f"start one with: tieconv fleet check SOURCES -o {shell_word(directory)}",
            "fleet.directory",
        )
    _check_parts(directory, {name.removesuffix(LIST) for name in names if name.endswith(LIST)})
    return names


def _check_parts(directory: str, parts: set[str]) -> None:
    """Raise `SettingsError` unless each part of one run is there."""
    number = max(int(part.rpartition("-of-")[2]) if "-of-" in part else 1 for part in parts)
    expected = {"check"} if number == 1 else {f"check-{part}-of-{number}" for part in range(1, number + 1)}
    if parts - expected:
        raise SettingsError(
            f"{shown(directory)} holds parts of different runs",
            "use one directory for each number of parts",
            "fleet.parts",
        )
    if parts != expected:
        raise SettingsError(
            f"{shown(directory)} holds {len(parts)} of {number} parts", "run the others first", "fleet.parts"
        )


def _listed(path: str) -> list[str]:
    data = read_bytes(path, links=False)
    try:
        sources = parse_json(data, len(data))
        if isinstance(sources, list) and all(isinstance(source, str) for source in sources):
            return sources
    except ValueError as error:
        raise _no_list(path) from error
    raise _no_list(path)


def _no_list(path: str) -> SettingsError:
    return SettingsError(f"{shown(path)} is not a list of models", "remove it, and run again", "fleet.list")
