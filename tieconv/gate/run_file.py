"""Read and write the file of a run over many models. Each finished model is one line, so a later run can resume."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tieconv.checkpoint.finding import Action, Level
from tieconv.checkpoint.results.checked import CheckedFinding, CheckedModel, CheckReport
from tieconv.formats.strict_json import line_of, parse_line
from tieconv.reporters.ci.check_json import report_of
from tieconv.sources.user_files import LineFile
from tieconv.version import VERSION

RUN_SCHEMA = "tieconv.run/1"


class RunFile:
    """The results of an earlier run by the model's source, to which this run adds its own.

    ``asked`` holds the options of the run; results of a run with other options do not count. Models that could not be
    read are tried again.
    """

    def __init__(self, path: str, asked: Mapping[str, object]) -> None:
        self._file = LineFile(path, RUN_SCHEMA)
        self._asked = {"tieconv": VERSION, **asked}
        self.known: dict[str, CheckedModel] = {}
        for model in self._file.read(self._parsed):
            if model is not None:
                self.known[model.source] = model

    def _parsed(self, line: bytes) -> CheckedModel | None:
        entry = parse_line(line, RUN_SCHEMA)
        model = model_of(entry)
        return model if entry.get("asked") == self._asked and model.failure is None else None

    def add(self, model: CheckedModel) -> None:
        """Append a model after the existing lines. Raises `DestinationError`."""
        self._file.append(line_of(entry_of(model, self._asked), RUN_SCHEMA))


def entry_of(model: CheckedModel, asked: Mapping[str, object], **listed: object) -> dict[str, object]:
    """Return the object of a model's line. ``listed`` are more keys of a run over a fleet."""
    return {
        "asked": asked,
        **listed,
        "report": CheckReport((model,), Level.WARNING).to_dict(),
        "actions": [_action_of(entry) for entry in model.findings],
    }


def model_of(entry: Mapping[str, Any]) -> CheckedModel:
    """Return the model of a line's object. Raises one of `MALFORMED` for others."""
    [model] = report_of(entry["report"]).models
    return _with_actions(model, entry["actions"])


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
