"""Inspect models one by one, keep them in a run file, and judge their findings by the policy."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from tieconv.checkpoint.finding import Action, Finding, Level
from tieconv.checkpoint.inspection import Inspection, State
from tieconv.checkpoint.results.checked import CheckedFinding, CheckedModel, CheckReport, Failure
from tieconv.errors import DestinationError, RefusedError, TieconvError, explained
from tieconv.formats.strict_json import line_of, parse_line
from tieconv.gate.model_sources import is_weight, listed_content
from tieconv.gate.policy import Policy
from tieconv.gate.workers import Workers, each
from tieconv.reporters.ci.check_json import report_of as parsed_report
from tieconv.sources import is_object
from tieconv.sources.user_files import LineFile, place_of
from tieconv.text import shown
from tieconv.version import VERSION

if TYPE_CHECKING:
    from concurrent.futures import Executor


# Read and write the file of a run over many models. Each finished model is one line, so a later run can resume.


RUN_SCHEMA = "tieconv.run/1"


class RunFile:
    """The results of an earlier run by the model's source, to which this run adds its own.

    ``asked`` holds the options of the run; results of a run with other options do not count. Models that could not be
    read are tried again, as are local models that have changed since.
    """

    def __init__(self, path: str, asked: Mapping[str, object]) -> None:
        self._file = LineFile(path, RUN_SCHEMA)
        self._asked = {"tieconv": VERSION, **asked}
        self._now: dict[str, str | None] = {}
        read = (known for known in self._file.read(self._parsed) if known is not None)
        self._read = {model.source: (model, fingerprint) for model, fingerprint in read}

    def _parsed(self, line: bytes) -> tuple[CheckedModel, object] | None:
        entry = parse_line(line, RUN_SCHEMA)
        model = model_of(entry)
        same = entry.get("asked") == self._asked and model.failure is None
        return (model, entry.get("fingerprint")) if same else None

    def known(self, paths: Iterable[str]) -> dict[str, CheckedModel]:
        """Return the models of the file that are unchanged. No request is made for a remote one."""
        self._now = {path: None if "://" in path else _fingerprint(path) for path in paths}
        read = ((path, *self._read[path]) for path in self._now if path in self._read)
        return {path: model for path, model, fingerprint in read if fingerprint == self._now[path]}

    def add(self, model: CheckedModel) -> None:
        """Append a model after the existing lines. Raises `DestinationError`."""
        listed = {"fingerprint": self._now[model.source]}
        self._file.append(line_of(entry_of(model, self._asked, **listed), RUN_SCHEMA))


def _fingerprint(path: str) -> str | None:
    try:
        return listed_content(path).fingerprint
    except (TieconvError, OSError):
        return ""  # reading it reports why


def entry_of(model: CheckedModel, asked: Mapping[str, object], **listed: object) -> dict[str, object]:
    """Return the object of a model's line. ``listed`` are more keys of a run over a fleet."""
    return {
        "asked": asked,
        **listed,
        "report": CheckReport((model,), Level.WARNING).to_dict(),
        "actions": [_action_of(entry) for entry in model.findings],
    }


def model_of(entry: Mapping[str, Any]) -> CheckedModel:
    """Return the model of a line's object, with the actions of `_action_of`. Raises one of `MALFORMED` for others."""
    [model] = parsed_report(entry["report"]).models
    findings = (_with_action(*recorded) for recorded in zip(model.findings, entry["actions"], strict=True))
    return replace(model, findings=tuple(findings))


def _action_of(entry: CheckedFinding) -> list[object] | None:
    """Return the remedy as data: the report leaves it out, but the summary counts it."""
    action = entry.finding.remedy.action if entry.finding.remedy else None
    return [action.verb, action.source, [list(option) for option in action.options]] if action else None


def _with_action(entry: CheckedFinding, recorded: list[Any] | None) -> CheckedFinding:
    remedy = entry.finding.remedy
    if recorded is None or remedy is None:
        return entry
    verb, source, options = recorded
    action = Action(str(verb), str(source), tuple((str(name), value) for name, value in options))
    return replace(entry, finding=replace(entry.finding, remedy=replace(remedy, action=action)))


# Inspect models one by one and judge their findings by the policy.


Inspect = Callable[[str], Inspection]


def examine(inspect: Inspect, path: str) -> CheckedModel:
    """Return the findings of one model with their files, or the failure. One failure does not stop the other models.

    Raises what concerns all models alike: a `RefusedError`, or an unknown loader.
    """
    try:
        inspection = inspect(path)
    except Exception as error:
        if isinstance(error, RefusedError) or getattr(error, "code", "") == "consumers.unknown":
            raise
        return CheckedModel(path, failure=Failure(*explained(error, path)))
    unread = [member.name for tie in inspection.ties for member in tie.members if member.state is State.UNREAD]
    names = inspection.checkpoint.companions
    directories = {os.path.dirname(name) for name in names if "/" in name and is_weight(os.path.basename(name))}
    return CheckedModel(
        path,
        tuple(CheckedFinding(finding, file_of(inspection, finding)) for finding in inspection.findings),
        unread=tuple(dict.fromkeys((*unread, *inspection.without_numpy))),
        below=tuple(sorted(directories | {name for name in names if "/" not in name and name.endswith(".onnx")})),
        not_compared=left.tensors if (left := inspection.not_compared) and left.counts else 0,
    )


def check_models(
    inspect: Inspect,
    policy: Policy,
    paths: Iterable[str],
    jobs: int,
    tick: Callable[[CheckedModel], object],
    record: RunFile | None = None,
    executor: Executor | None = None,
) -> tuple[CheckReport, dict[str, CheckedModel]]:
    """Return the report, and its models by location. Each model is read once.

    A model that is given twice, or that ``record`` already holds, is not read again. An ``executor`` replaces the
    processes.
    """
    places: dict[str, str] = {}
    for path in paths:
        places.setdefault(place_of(path), path)
    models: dict[str, CheckedModel] = {}
    for location, model in zip(places, _examined(inspect, list(places.values()), jobs, record, executor), strict=True):
        models[location] = policy.judge(model, location)
        tick(model)
    notes = tuple(policy.notes(models))
    return report_of(tuple(models.values()), policy, notes), models


def report_of(models: tuple[CheckedModel, ...], policy: Policy, notes: tuple[str, ...]) -> CheckReport:
    """Return the report on judged models."""
    path = policy.settings.path
    return CheckReport(models, policy.fail_on, notes, policy.selection.codes(), os.path.relpath(path) if path else "")


def in_memory_too(report: CheckReport, policy: Policy, inspections: Iterable[Inspection]) -> CheckReport:
    """Return the report with models in memory before its models. They have no path for a setting or a baseline."""
    named = ((inspection, inspection.checkpoint.source) for inspection in inspections)
    models = [policy.judge(examine(lambda _, evidence=evidence: evidence, name), name) for evidence, name in named]  # type: ignore[misc]
    return replace(report, models=(*models, *report.models))


def _examined(
    inspect: Inspect, paths: list[str], jobs: int, record: RunFile | None, executor: Executor | None
) -> Iterator[CheckedModel]:
    known = record.known(paths) if record else {}
    unknown = [path for path in paths if path not in known]
    workers = Workers(jobs, executor, clean=any(map(is_object, unknown)))
    fresh = each(partial(examine, inspect), unknown, workers, lost_model)
    for path in paths:
        if path in known:
            yield known[path]
            continue
        model = next(fresh)
        if record:
            record.add(model)
        yield model


def lost_model(path: str) -> CheckedModel:
    """Return the model as not read: the process that read it was killed."""
    return CheckedModel(
        path, failure=Failure(f"{shown(path)}: the process that read it was killed", "if memory is short, use --jobs 1")
    )


def outputs(places: dict[str, str], out: str) -> Iterator[str]:
    """Yield where each fixed model is written: OUT for one model, OUT/NAME for several.

    Raises `DestinationError` if two models have the same name.
    """
    if len(places) == 1:
        yield out
        return
    taken: dict[str, str] = {}
    for location, path in places.items():
        name = os.path.basename(location.rstrip("/"))
        twin = taken.setdefault(name.casefold(), path)
        if twin is not path:
            problem = f"{shown(twin)} and {shown(path)} would both be written to {shown(os.path.join(out, name))}"
            raise DestinationError(problem, "fix them one by one", "out.same-name")
        yield os.path.join(out, name)


ADAPTER = "adapter_config.json"
_OF_THE_CONFIG = frozenset({"TIE007", "TIE008", "TIE009", "TIE013", "TIE014", "MTP001", "VOC001", "VOC002", "VOC003"})
_OF_THE_ADAPTER = frozenset({"PEF001", "PEF002"})


def file_of(inspection: Inspection, finding: Finding) -> str:
    """Return the file, relative to the model: of a tensor, the index, or the config.

    Of two tensors that are compared, the last counts: it differs, or is the copy. The same fault gives the same file,
    whatever numbers the message holds.
    """
    checkpoint = inspection.checkpoint
    weights = checkpoint.files[0].name if checkpoint.files else ""
    if finding.file:
        return finding.file
    if finding.rule in _OF_THE_CONFIG and checkpoint.config:
        return checkpoint.config.name
    if finding.rule in _OF_THE_ADAPTER:
        return ADAPTER
    if finding.rule.startswith("IDX") and checkpoint.index:
        return checkpoint.index.name
    if finding.rule == "SEC001" and checkpoint.special:
        return next(iter(checkpoint.special))
    graph = next(
        (record.file for record in checkpoint.graphs if finding.tensors and finding.tensors[0] in record.names), None
    )
    if graph is not None:
        return graph
    tensors = checkpoint.tensors
    names = [name for name in finding.tensors if name in tensors]
    number = -1 if finding.rule in ("TIE001", "TIE002") else 0
    stored = (weights if checkpoint.table else tensors[names[number]].range.file) if names else None
    if stored is None and not finding.tensors and checkpoint.config and not finding.rule.startswith(("STO", "IDX")):
        return checkpoint.config.name
    return stored or weights
