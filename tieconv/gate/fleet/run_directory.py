"""Read the results of `fleet check` in a directory: those of every part of the run."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping

from tieconv.checkpoint.results.checked import CheckedModel
from tieconv.checkpoint.value_type import record
from tieconv.errors import SettingsError, TieconvError
from tieconv.gate.fleet.run_part import LINES, LIST, LineFormat, read_lines
from tieconv.gate.run_file import RUN_SCHEMA, entry_of, model_of
from tieconv.text import shell_word, shown

_OURS = re.compile(r"check(-[1-9]\d{0,5}-of-[1-9]\d{0,5})?\.(list|jsonl)")


@record
class FinishedModel:
    """A model of a run: its findings, the size of its files, and when it was read (seconds since 1970)."""

    model: CheckedModel
    bytes: int
    finished: float


CHECKED: LineFormat[CheckedModel] = LineFormat(RUN_SCHEMA, entry_of, model_of)


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
