"""RUNS, the directory of a run over many models: a line for each result, and the list of models."""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from stat import S_ISDIR
from typing import Any, Generic, TypeVar

from tieconv.checkpoint.results.checked import CheckedModel, Failure
from tieconv.checkpoint.results.fleet import CommandResult, FleetProgress
from tieconv.checkpoint.value_type import record, values_of
from tieconv.errors import SettingsError, TieconvError
from tieconv.execute.tree import walk
from tieconv.formats.strict_json import LAST_SECOND, line_of, parse_json, parse_line, real, whole
from tieconv.gate.examine import RUN_SCHEMA, Inspect, entry_of, examine, model_of
from tieconv.gate.model_sources import ListedContent, holds_weights, listed_content
from tieconv.gate.workers import Workers, unordered
from tieconv.sources import is_object
from tieconv.sources.user_files import LIMIT, LineFile, read_bytes, unwritable, write_text
from tieconv.text import shell_word, shown
from tieconv.version import VERSION

# RUNS, the directory of a run over many models: a line for each result, and the list of models.
#
# Each part of a run has its own two files, such as `check.jsonl` and `check.list`. RUNS may be an unpacked artifact
# of a CI job. So tieconv reads it as a hostile input, and writes through no symlink in it.


LIST, LINES = ".list", ".jsonl"
_OURS = re.compile(r"check(-[1-9]\d{0,5}-of-[1-9]\d{0,5})?\.(list|jsonl)")


R = TypeVar("R", bound=CheckedModel | CommandResult)


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


CHECKED: LineFormat[CheckedModel] = LineFormat(
    RUN_SCHEMA, entry_of, model_of, lambda source, failure: CheckedModel(source, failure=failure)
)


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
        if holds_weights(directory):
            raise SettingsError(f"{shown(directory)} holds a model", "name another directory", "fleet.directory")
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
        hint = "finish the last run, so that every model is read with its options"
        raise SettingsError(f"{shown(directory)} holds results of runs with different options", hint, "fleet.mixed")
    ordered = {source: models[source] for source in sorted(models)}
    return FleetRun(directory, ordered, len(wanted) - len(models), next(iter(different), ""))


def _names(directory: str) -> list[str]:
    try:
        names = sorted(name for name in os.listdir(directory) if _OURS.fullmatch(name))
    except OSError as error:
        problem = f"{shown(directory)} cannot be read: {(error.strerror or 'unknown error').lower()}"
        hint = "give the directory that `tieconv fleet check -o` wrote"
        raise SettingsError(problem, hint, "fleet.directory") from error
    if not any(name.endswith(LIST) for name in names):
        hint = f"start one with: tieconv fleet check SOURCES -o {shell_word(directory)}"
        raise SettingsError(f"{shown(directory)} holds no run", hint, "fleet.directory")
    parts = {name.removesuffix(LIST) for name in names if name.endswith(LIST)}
    # Each part of one run must be there.
    number = max(int(part.rpartition("-of-")[2]) if "-of-" in part else 1 for part in parts)
    expected = {"check"} if number == 1 else {f"check-{part}-of-{number}" for part in range(1, number + 1)}
    if parts - expected:
        problem = f"{shown(directory)} holds parts of different runs"
        raise SettingsError(problem, "use one directory for each number of parts", "fleet.parts")
    if parts != expected:
        problem = f"{shown(directory)} holds {len(parts)} of {number} parts"
        raise SettingsError(problem, "run the others first", "fleet.parts")
    return names


def _listed(path: str) -> list[str]:
    data = read_bytes(path, links=False)
    with suppress(ValueError):
        sources = parse_json(data, len(data))
        if isinstance(sources, list) and all(isinstance(source, str) for source in sources):
            return sources
    raise SettingsError(f"{shown(path)} is not a list of models", "remove it, and run again", "fleet.list")


# The lines of `fleet inspect`, `analyze`, `convert`, `export` and `parity`: what the command printed and wrote.


RESULT_SCHEMA = "tieconv.fleet-result/1"
_LONGEST_NAME = 80


def _entry(result: CommandResult, asked: Mapping[str, object], **listed: object) -> dict[str, object]:
    return {
        **values_of(result, "source exit_code"),
        "seconds": round(result.seconds, 3),
        **values_of(result, "output output_content=content error=failure"),
        "asked": asked,
        **listed,
        "report": json.loads(result.document) if result.document else None,
    }


def _parse(entry: Mapping[str, Any]) -> CommandResult:
    error, code = entry["error"], entry["exit_code"]
    exit_code, seconds = None if code is None else whole(code, 255), real(entry["seconds"], LAST_SECOND)
    output = None if entry["output"] is None else str(entry["output"])
    failure = None if error is None else Failure(str(error["message"]), str(error["hint"]))
    content = str(entry.get("output_content", ""))
    # The document stays out: a run counts exit codes alone.
    return CommandResult(str(entry["source"]), exit_code, seconds, "", output, failure, content)


def _is_kept(result: CommandResult, directory: str) -> bool:
    """Return whether ``directory`` still has what the command wrote for the model."""
    return result.output is None or content_of(_below(directory, result.output)) == result.content


RESULTS: LineFormat[CommandResult] = LineFormat(
    RESULT_SCHEMA, _entry, _parse, lambda source, failure: CommandResult(source, None, failure=failure), _is_kept
)


def _below(directory: str, output: str) -> str:
    """Return where a run keeps ``output`` now, wherever RUNS has been moved: never a path that a line makes up."""
    return os.path.join(directory, os.path.basename(output.rstrip("/")) or "-")


def content_of(directory: str) -> str:
    """Return a SHA-256 of the names and sizes in a directory, or an empty text if there is none."""
    try:
        if os.path.islink(directory):
            return ""
        files = sorted((name, status.st_size) for name, status in walk(Path(directory)) if not S_ISDIR(status.st_mode))
    except (OSError, RecursionError):
        return ""
    return hashlib.sha256(json.dumps(files).encode()).hexdigest()


def lost_result(source: str) -> CommandResult:
    """Return the result of a command whose process was killed."""
    message = f"{shown(source)}: the process that worked on it was killed"
    return CommandResult(source, None, failure=Failure(message, "if memory is short, use --jobs 1"))


def output_of(directory: str, source: str, fingerprint: str, options: Sequence[str]) -> str:
    """Return the directory below ``directory`` for what a command writes.

    It differs for each model, content and options, so nothing is replaced except by the same command.
    """
    digest = hashlib.sha256(json.dumps([source, fingerprint, *options]).encode()).hexdigest()
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", os.path.basename(source.rstrip("/"))).strip(".-")
    return os.path.join(directory, f"{name[:_LONGEST_NAME] or 'model'}-{digest[:10]}")


def exported_graphs(directory: str) -> dict[str, str]:
    """Return the graph that `fleet export` wrote for each model. Raises `SettingsError` if there is none."""
    name = re.compile(rf"export(-\d+-of-\d+)?{re.escape(LINES)}")
    files = (
        sorted(entry for entry in os.listdir(directory) if name.fullmatch(entry)) if os.path.isdir(directory) else []
    )
    lines = [line for file in files for line in read_lines(os.path.join(directory, file), RESULTS)]
    latest = {line.result.source: line.result.output for line in sorted(lines, key=lambda line: line.finished)}
    exported = os.path.join(directory, "export")
    graphs = {source: _below(exported, output) for source, output in latest.items() if output is not None}
    if not graphs:
        hint = f"write them with: tieconv fleet export SOURCES -o {shell_word(directory)}"
        raise SettingsError(f"{shown(directory)} holds no graph", hint, "fleet.graphs")
    return graphs


# Work on the models of a fleet that are new or changed, and add the results to a run.


_UNLISTED = ListedContent("", 0)
_NAMED = 20
"""Most models whose failure is named at the end of a run."""


@record
class Task:
    """A model to work on: the fingerprint of its ``known`` result, and a ``graph`` that belongs to it, or empty."""

    source: str
    known: str = ""
    graph: str = ""


Work = Callable[[Task, ListedContent], R]
"""``work(task, content)`` returns the result for a model. It must survive pickling."""


def part_of(sources: Sequence[str], part: tuple[int, int]) -> tuple[str, ...]:
    """Return the models of part ``(I, N)``: each N-th, so that large neighbours spread over the parts."""
    return tuple(sources[part[0] - 1 :: part[1]])


def collect(
    work: Work[R],
    lost: Callable[[str], R],
    sources: Sequence[str],
    run: RunPart[R],
    workers: Workers,
    tick: Callable[[FleetProgress], object],
    graphs: Mapping[str, str] | None = None,
) -> FleetProgress:
    """Work on each model whose listing is not the one of ``run``, and add it. Calls ``tick`` for each model.

    ``graphs`` maps models to a path that belongs to them. With another path, a model is worked on again.
    """
    run.start(sources)
    paths = graphs or {}
    tasks = [Task(source, run.known.get(source, ""), paths.get(source, "")) for source in sources]
    progress = FleetProgress(len(tasks))
    workers = replace(workers, clean=any(map(is_object, sources)))

    def missing(task: Task) -> tuple[R | None, ListedContent]:
        return lost(task.source), _UNLISTED

    for _, (result, content) in unordered(partial(_attempt, work), tasks, workers, missing):
        if result is not None:
            run.add(result, content, time.time())
        failure = result.failure if result is not None else None
        progress = FleetProgress(
            progress.total,
            progress.finished + 1,
            progress.unchanged + (result is None),
            progress.unread + (failure is not None),
            progress.bytes + (content.bytes if result is not None else 0),
            (*progress.failures, *([(result.source, failure.message)] if result and failure else []))[:_NAMED],
        )
        tick(progress)
    return progress


def _attempt(work: Work[R], task: Task) -> tuple[R | None, ListedContent]:
    """Return the result for a model, or None if its listing is known. A change after the listing counts."""
    try:
        content = listed_content(task.source)
    except (TieconvError, OSError):
        content = _UNLISTED  # the work reports why
    if task.graph and content.fingerprint:
        content = ListedContent(f"{content.fingerprint} {task.graph}", content.bytes)
    if task.known and task.known == content.fingerprint:
        return None, content
    return work(task, content), content


def checked(inspect: Inspect, task: Task, content: ListedContent) -> CheckedModel:
    """Do the work of `fleet check`: return the findings of a model, or why it could not be read."""
    return examine(inspect, task.source)
