"""Read and write the file of a run over many models. Each finished model is one line, so a later run can resume."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tieconv.checkpoint.finding import Action, Level
from tieconv.checkpoint.results.checked import CheckedFinding, CheckedModel, CheckReport
from tieconv.errors import DestinationError, SettingsError
from tieconv.reporters.ci.check_json import read
from tieconv.sources.texts import read_text
from tieconv.text import shown
from tieconv.version import VERSION

RUN_SCHEMA = "tieconv.run/1"


class RunFile:
    """The results of an earlier run by the model's source, to which this run adds its own.

    ``asked`` holds the options of the run; results of a run with other options do not count. Models that could not be
    read are tried again.
    """

    def __init__(self, path: str, asked: Mapping[str, object]) -> None:
        self._path = path
        self._asked = {"tieconv": VERSION, **asked}
        self._end, self._whole = 0, True
        self.known = self._read() if os.path.lexists(path) else {}

    def _read(self) -> dict[str, CheckedModel]:
        text = read_text(self._path)
        self._end = len(text[: text.rfind("\n") + 1].encode())
        self._whole = not text or text.endswith("\n")
        lines = text.split("\n")
        models: dict[str, CheckedModel] = {}
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                entry, model = parse_line(line)
            except (ValueError, KeyError, TypeError) as error:
                if number == len(lines) and number > 1:  # a run that was killed while it wrote
                    continue
                raise malformed(self._path, number) from error
            if entry.get("asked") == self._asked and model.failure is None:
                models[model.source] = model
        return models

    def add(self, model: CheckedModel) -> None:
        """Append a model after the existing lines. Raises `DestinationError`."""
        data = line_of(model, self._asked)
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


def line_of(model: CheckedModel, asked: Mapping[str, object], **listed: object) -> bytes:
    """Return the line of a model. ``listed`` are more keys of a run over a fleet."""
    entry = {
        "schema": RUN_SCHEMA,
        "asked": asked,
        **listed,
        "report": CheckReport((model,), Level.WARNING).to_dict(),
        "actions": [_action_of(entry) for entry in model.findings],
    }
    return json.dumps(entry).encode() + b"\n"


def parse_line(line: str | bytes) -> tuple[dict[str, Any], CheckedModel]:
    """Return the document of a line and its model. Raises ``ValueError``, ``KeyError`` or ``TypeError`` for others."""
    entry: dict[str, Any] = json.loads(line)
    if entry["schema"] != RUN_SCHEMA:
        raise ValueError(f"not a {RUN_SCHEMA}")
    [model] = read(json.dumps(entry["report"])).models
    return entry, _with_actions(model, entry["actions"])


def malformed(path: str, number: int) -> SettingsError:
    """Return the error for a line that is not a model."""
    return SettingsError(
        f"{shown(path)} is not a {RUN_SCHEMA} file: line {number} cannot be read",
        "give another file, or remove this one",
        "run.malformed",
    )


def _check_own(path: str, status: os.stat_result) -> None:
    """Raise `DestinationError` for a hard link, whose other names would change too."""
    if stat.S_ISREG(status.st_mode) and status.st_nlink > 1:
        raise DestinationError(
            f"tieconv does not append to {shown(path)}: it is a hard link to another file",
            "give another file",
            "out.text",
        )


def _action_of(entry: CheckedFinding) -> list[object] | None:
    """Return the remedy as data: the report leaves it out, but the summary counts it."""
    action = entry.finding.remedy.action if entry.finding.remedy else None
    return [action.verb, action.source, [list(option) for option in action.options]] if action else None


def _with_actions(model: CheckedModel, actions: list[Any]) -> CheckedModel:
    """Return ``model`` with the actions that `_action_of` wrote. Raises ``ValueError`` or ``TypeError`` for others."""
    findings = (_with_action(entry, action) for entry, action in zip(model.findings, actions, strict=True))
    return replace(model, findings=tuple(findings))


def _with_action(entry: CheckedFinding, recorded: list[Any] | None) -> CheckedFinding:
    remedy = entry.finding.remedy
    if recorded is None or remedy is None:
        return entry
    verb, source, options = recorded
    action = Action(str(verb), str(source), tuple((str(flag), str(value)) for flag, value in options))
    return replace(entry, finding=replace(entry.finding, remedy=replace(remedy, action=action)))
