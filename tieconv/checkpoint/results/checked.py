"""The gate's result for many models: findings by file, ignored findings, and models it could not read."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

from tieconv.checkpoint.finding import Action, Finding, Level
from tieconv.checkpoint.value_type import Listed, Printed, record, values_of
from tieconv.text import count, tally
from tieconv.version import VERSION

CHECK_SCHEMA = "tieconv.check/1"

RANK = {Level.ERROR: 0, Level.WARNING: 1, Level.NOTE: 2}
"""Order of the levels, the worst first."""


@record
class Waiver:
    """Why a finding does not count: ``by`` is `ignore`, `model` (a per-model ignore) or `baseline`."""

    by: str
    reason: str

    @property
    def sentence(self) -> str:
        """Who waived the finding, and why."""
        return f"{self.by}: {self.reason}".removesuffix(": ")


@record
class CheckedFinding:
    """A finding with its ``file``: the name, within the model, of the file that it is about."""

    finding: Finding
    file: str
    waiver: Waiver | None = None

    @property
    def fingerprint(self) -> str:
        """A hash of rule, file and tensors: the message's figures and the model's path do not count."""
        import hashlib  # only some formats need it

        parts = [self.finding.rule, self.file, *sorted(self.finding.tensors)]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]

    def to_dict(self) -> dict[str, object]:
        """Return an entry of `findings`."""
        return {**self.finding.to_dict(), **values_of(self, "file fingerprint waiver")}


@record
class Failure:
    """Why a model could not be checked."""

    message: str
    hint: str


@record
class Fix(Listed):
    """A remedy that was applied, or (``refusal``) why not; ``rules`` are those that asked for it."""

    command: str
    rules: tuple[str, ...]
    refusal: str = ""


@record
class CheckedModel:
    """One model: its findings, the worst first, or why there are none.

    ``fixes`` lists what `--fix` did or skipped, in its order. ``output`` is the path of the fixed model. ``unread`` are
    the tied names of which too little was read to say whether they are equal. ``below`` are the directories below it
    that hold other weights. ``not_compared`` counts large tensors that only `--depth full` compares with each other.
    """

    source: str
    findings: tuple[CheckedFinding, ...] = ()
    failure: Failure | None = None
    fixes: tuple[Fix, ...] = ()
    output: str | None = None
    unread: tuple[str, ...] = ()
    below: tuple[str, ...] = ()
    not_compared: int = 0

    def is_target(self, action: Action) -> bool:
        """Return whether the action writes this model: an adapter's finding may give a command for its base."""
        source = os.path.normpath(action.source)
        return source in (os.path.normpath(self.source), os.path.normpath(os.path.dirname(self.source)))

    @property
    def open(self) -> Iterator[CheckedFinding]:
        """Yield the findings that count."""
        return (entry for entry in self.findings if entry.waiver is None)


@record
class CheckReport(Printed):
    """The answer of `tieconv check`.

    ``notes`` are about settings, the baseline and what was not read. ``rules`` are the codes of the rules that were
    applied, empty for every rule. ``settings`` is the path of the settings file, empty without one, and ``None`` if
    the report does not say.
    """

    models: tuple[CheckedModel, ...]
    fail_on: Level
    notes: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    settings: str | None = None

    @property
    def not_checked(self) -> tuple[str, ...]:
        """The models below the checked ones that this report does not cover."""
        checked = {os.path.normpath(model.source) for model in self.models}
        # A directory of GGUF files is checked file by file.
        checked |= {os.path.dirname(path) for path in checked if path.endswith(".gguf")}
        below = (_join(model.source, directory) for model in self.models for directory in model.below)
        return tuple(dict.fromkeys(path for path in below if os.path.normpath(path) not in checked))

    def counts(self, entry: CheckedFinding) -> bool:
        """Return whether a finding fails its model: it is open and at or above the level."""
        return entry.waiver is None and RANK[entry.finding.level] <= RANK[self.fail_on]

    @property
    def fixable(self) -> int:
        """The findings that count and that `check --fix` would try to fix."""
        return sum(
            remedy.safe and remedy.action is not None and model.is_target(remedy.action)
            for model in self.models
            for entry in filter(self.counts, model.findings)
            if (remedy := entry.finding.remedy) is not None
        )

    def fails(self, model: CheckedModel) -> bool:
        """Return whether a model could not be read, or has a finding that counts."""
        return model.failure is not None or any(map(self.counts, model.findings))

    @property
    def failed(self) -> int:
        """The models that fail."""
        return sum(map(self.fails, self.models))

    @property
    def exit_code(self) -> int:
        """2 if a model could not be read, else 1 if a model has a finding that counts, else 0."""
        if any(model.failure is not None for model in self.models):
            return 2
        return 1 if self.failed else 0

    def to_dict(self) -> dict[str, object]:
        """Return the document of schema `tieconv.check/1`.

        ``failed`` counts the models with an open finding at ``fail_on`` or above, and those that could not be read.
        """
        return {
            "schema": CHECK_SCHEMA,
            "tieconv": VERSION,
            **values_of(self, "fail_on rules"),
            "models": [self._model(model) for model in self.models],
            "failed": self.failed,
            "waived": sum(entry.waiver is not None for model in self.models for entry in model.findings),
            "notes": list(self.notes),
            **({} if self.settings is None else {"settings": self.settings or None}),
            "not_checked": list(self.not_checked),
        }

    def _facts(self) -> tuple[str, ...]:
        findings = tally(entry.finding.level for model in self.models for entry in model.open)
        return count(len(self.models), "model"), f"{self.failed:,} failed", *findings

    def _rows(self) -> Iterator[tuple[str, ...]]:
        for model in self.models:
            if model.failure is not None:
                yield model.source, "not read", "", model.failure.message
            for entry in model.open:
                yield model.source, *entry.finding.row

    def _model(self, model: CheckedModel) -> dict[str, object]:
        rest = values_of(model, "failure findings fixes output unread below not_compared")
        return {"source": model.source, "failed": self.fails(model), **rest}


def _join(source: str, directory: str) -> str:
    return f"{source.rstrip('/')}/{directory}" if "://" in source else os.path.normpath(f"{source}/{directory}")
