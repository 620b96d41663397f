"""The report on a run over many models, and how it differs from an earlier run."""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.results.checked import RANK, CheckedModel, CheckReport, Failure
from tieconv.checkpoint.value_type import Listed, Printed, record, values_of
from tieconv.text import count
from tieconv.version import VERSION

UNREAD = "unread"
"""In place of a rule: the model could not be read."""
_ONE_LOADER = "CON"
"""Start of the rules about the loaders that the user asked for."""


@record
class Change(Listed):
    """A finding of this run or the earlier one: ``state`` is ``new``, ``fixed`` or ``still``."""

    state: str
    source: str
    rule: str
    level: str
    message: str


@record
class RuleCount(Listed):
    """How many models have a finding of a rule that counts, now and in the earlier run (None without one)."""

    rule: str
    level: str
    models: int
    before: int | None = None


@record
class Since:
    """The comparison with an earlier run: its directory, its models that count, and each finding of either run."""

    directory: str
    failed: int
    changes: tuple[Change, ...]
    added: int
    removed: int

    def of(self, state: str) -> tuple[Change, ...]:
        """Return the changes of a state."""
        return tuple(change for change in self.changes if change.state == state)


@record
class FleetReport(Printed):
    """The answer of `tieconv fleet report`.

    ``checked`` holds the finished models. ``unfinished`` counts the models of the run without a result. ``bytes`` is
    the size of their files. ``finished`` is the time of the last result, in seconds since 1970.
    """

    directory: str
    checked: CheckReport
    unfinished: int
    bytes: int
    finished: float
    rules: tuple[RuleCount, ...]
    since: Since | None = None

    @property
    def unread(self) -> int:
        """The models that could not be read."""
        return sum(model.failure is not None for model in self.checked.models)

    @property
    def failed(self) -> int:
        """The models that fail: those with a finding that counts, and the unread."""
        return self.checked.failed

    @property
    def uncompared(self) -> int:
        """The models with tied names whose equality is unknown, because too few of their bytes were read."""
        return sum(bool(model.unread) for model in self.checked.models)

    @property
    def exit_code(self) -> int:
        """With an earlier run: 1 if a finding is new, else 2 if models are not finished. Otherwise 0."""
        return 0 if self.since is None else 1 if self.since.of("new") else 2 if self.unfinished else 0

    @property
    def worst(self) -> tuple[CheckedModel, ...]:
        """The models that fail: the unread first, then by the errors for every loader, then by all errors."""
        return tuple(sorted(filter(self.checked.fails, self.checked.models), key=self._badness))

    def counting(self, model: CheckedModel) -> list[Finding]:
        """Return the findings of a model that count, the worst first: those about one loader after the others."""
        counting = [entry.finding for entry in model.findings if self.checked.counts(entry)]
        return sorted(counting, key=lambda finding: (RANK[finding.level], finding.rule.startswith(_ONE_LOADER)))

    def _badness(self, model: CheckedModel) -> tuple[object, ...]:
        counting = self.counting(model)
        ranks = [RANK[finding.level] for finding in counting]
        errors = sum(entry.level is Level.ERROR and not entry.rule.startswith(_ONE_LOADER) for entry in counting)
        return (model.failure is None, -errors, *(-ranks.count(rank) for rank in sorted(RANK.values())), model.source)

    def to_dict(self) -> dict[str, object]:
        """Return the document of schema `tieconv.fleet-report/1`. It names the models that fail, the worst first."""
        since = self.since
        return {
            "schema": "tieconv.fleet-report/1",
            "tieconv": VERSION,
            **values_of(self, "directory fail_on=checked.fail_on"),
            "models": len(self.checked.models),
            **values_of(self, "unfinished unread uncompared failed bytes finished rules"),
            "worst": [self._model(model) for model in self.worst],
            "since": since
            and values_of(since, "directory failed added removed")
            | {state: len(since.of(state)) for state in ("new", "fixed", "still")},
            "changes": [change.to_dict() for change in since.changes if change.state != "still"] if since else [],
            "settings": self.checked.settings or None,
            **values_of(self.checked, "not_checked notes"),
        }

    def _model(self, model: CheckedModel) -> dict[str, object]:
        rules = [finding.rule for finding in self.counting(model)]
        return {"source": model.source, "failure": model.failure and model.failure.message, "rules": rules}

    def _facts(self) -> tuple[str, ...]:
        return count(len(self.checked.models), "model"), f"{self.failed:,} failed", f"{self.unread:,} unread"

    def _rows(self) -> Iterator[tuple[str, ...]]:
        for rule in self.rules:
            yield rule.rule, rule.level, count(rule.models, "model")


@record
class FleetProgress:
    """How far a run is. ``unchanged`` and ``unread`` models are finished too. ``bytes`` counts the models that were
    read. ``failures`` are the first unread models, each with its message.
    """

    total: int
    finished: int = 0
    unchanged: int = 0
    unread: int = 0
    bytes: int = 0
    failures: tuple[tuple[str, str], ...] = ()


@record
class CommandResult:
    """What a command did with a model.

    ``exit_code`` is None if its process was killed. ``document`` is the JSON that it printed, or empty. ``output`` is
    the directory that it wrote, and ``content`` a SHA-256 of its names and sizes. ``failure`` says why
    there is no answer.
    """

    source: str
    exit_code: int | None
    seconds: float = 0.0
    document: str = ""
    output: str | None = None
    failure: Failure | None = None
    content: str = ""


@record
class CommandRun:
    """What a run of a command did. ``unsuccessful`` are the last results whose exit code is not 0."""

    progress: FleetProgress
    unsuccessful: tuple[CommandResult, ...]

    @property
    def failed(self) -> int:
        """How many models have exit code 1."""
        return sum(result.failure is None for result in self.unsuccessful)

    @property
    def exit_code(self) -> int:
        """2 if any model has no answer, else 1 if any has exit code 1, else 0."""
        return 2 if self.failed < len(self.unsuccessful) else min(self.failed, 1)
