"""A directory of results: JSON lines as models finish, and the list of the models of the run."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence

from tieconv.checkpoint.results.checked import CheckedModel
from tieconv.checkpoint.value_type import record
from tieconv.errors import SettingsError, TieconvError
from tieconv.gate.fleet.listed_content import ListedContent
from tieconv.gate.run_file import RUN_SCHEMA, entry_of, model_of
from tieconv.sources.line_file import append_bytes, line_of, malformed, parse_line, unwritable
from tieconv.sources.texts import write_text
from tieconv.text import shell_word, shown
from tieconv.version import VERSION

_LIST = ".list"
_LINES = ".jsonl"
_OURS = re.compile(r"check(-[1-9]\d{0,5}-of-[1-9]\d{0,5})?\.(list|jsonl)")


@record
class FinishedModel:
    """A model of a run: its findings, the size of its files, and when it was read (seconds since 1970)."""

    model: CheckedModel
    bytes: int
    finished: float


class RunPart:
    """The results of one part of a run. Only this process writes them.

    ``known`` maps each model that was read with the same options to its fingerprint.
    """

    def __init__(self, directory: str, part: tuple[int, int], asked: Mapping[str, object]) -> None:
        name = "check" if part == (1, 1) else f"check-{part[0]}-of-{part[1]}"
        self._path = os.path.join(directory, f"{name}{_LINES}")
        self._list = os.path.join(directory, f"{name}{_LIST}")
        self._asked = {"tieconv": VERSION, **asked}
        options = _as_json(asked)
        try:
            os.makedirs(directory, exist_ok=True)
        except OSError as error:
            raise unwritable(directory, error) from error
        self.known: dict[str, str] = {}
        self._end = 0
        if os.path.lexists(self._path):
            for line in _lines(self._path):
                self._end = line.end
                model = line.finished.model
                read = (line.version, line.options) == (VERSION, options) and model.failure is None
                self.known[model.source] = line.fingerprint if read else ""

    def start(self, sources: Sequence[str]) -> None:
        """Write the list of models, and remove the unfinished line of a run that was killed."""
        write_text(self._list, json.dumps(sources, indent=0))
        append_bytes(self._path, b"", self._end)

    def add(self, model: CheckedModel, content: ListedContent, finished: float) -> None:
        """Append a model. Raises `DestinationError`."""
        entry = entry_of(
            model, self._asked, fingerprint=content.fingerprint, bytes=content.bytes, finished=round(finished, 3)
        )
        append_bytes(self._path, line_of(entry, RUN_SCHEMA))


@record
class _Line:
    """A whole line of results.

    ``version`` is of tieconv. ``options`` are those of the run, as JSON. ``end`` is the offset of the line's end.
    """

    finished: FinishedModel
    version: str
    options: str
    fingerprint: str
    end: int


def _lines(path: str) -> Iterator[_Line]:
    """Yield each whole line. Skips an unfinished last line. Raises `SettingsError`."""
    end = 0
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    return
                end += len(line)
                try:
                    parsed = _parsed(line, end)
                except (ValueError, KeyError, TypeError) as error:
                    raise malformed(path, RUN_SCHEMA, number) from error
                yield parsed
    except OSError as error:
        raise SettingsError(
            f"{shown(path)} cannot be read: {(error.strerror or '').lower()}", "check the path"
        ) from error


def _parsed(line: bytes, end: int) -> _Line:
    """Return the result of a line. Raises ``ValueError``, ``KeyError`` or ``TypeError`` for others."""
    entry = parse_line(line, RUN_SCHEMA)
    finished = FinishedModel(model_of(entry), int(entry.get("bytes", 0)), float(entry.get("finished", 0)))
    options = {**entry["asked"]}
    version = str(options.pop("tieconv", ""))
    return _Line(finished, version, _as_json(options), str(entry.get("fingerprint", "")), end)


def _as_json(options: Mapping[str, object]) -> str:
    return json.dumps(options, sort_keys=True)


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
    listed = [source for name in names if name.endswith(_LIST) for source in _listed(os.path.join(directory, name))]
    wanted = set(listed)
    models: dict[str, FinishedModel] = {}
    options: dict[str, str] = {}
    for name in names:
        if not name.endswith(_LINES):
            continue
        for line in _lines(os.path.join(directory, name)):
            source = line.finished.model.source
            if source in wanted and (source not in models or models[source].finished <= line.finished.finished):
                models[source] = line.finished
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
    if not any(name.endswith(_LIST) for name in names):
        raise SettingsError(
            f"{shown(directory)} holds no run",
            f"start one with: tieconv fleet check SOURCES -o {shell_word(directory)}",
            "fleet.directory",
        )
    _check_parts(directory, {name.removesuffix(_LIST) for name in names if name.endswith(_LIST)})
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
    try:
        with open(path, encoding="utf-8") as file:
            sources = json.load(file)
        if isinstance(sources, list) and all(isinstance(source, str) for source in sources):
            return sources
    except (OSError, ValueError, RecursionError) as error:
        raise _no_list(path) from error
    raise _no_list(path)


def _no_list(path: str) -> TieconvError:
    return SettingsError(f"{shown(path)} is not a list of models", "remove it, and run again", "fleet.list")
