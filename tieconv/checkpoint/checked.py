"""What the gate says about many models: findings in their places, what was waived, what could not be read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator

from tieconv.checkpoint.inspection import Finding, Level
from tieconv.checkpoint.record import record


@record
class Waiver:
    """Why a finding does not count: ``by`` is `ignore`, `model` (a per-model ignore) or `baseline`."""

    by: str
    reason: str


@record
class CheckedFinding:
    """A finding in its place: ``file`` is the name, within the model, of the file that it is about."""

    finding: Finding
    file: str
    waiver: Waiver | None = None

    @property
    def fingerprint(self) -> str:
        """Stable while rule, file and tensors stay: neither the message's figures nor the model's place count."""
        parts = [self.finding.rule, self.file, *sorted(self.finding.tensors)]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


@record
class Failure:
    """Why a model could not be checked."""

    message: str
    hint: str


@record
class CheckedModel:
    """One model: its findings, the worst first, or why there are none to give."""

    source: str
    findings: tuple[CheckedFinding, ...] = ()
    failure: Failure | None = None

    @property
    def open(self) -> Iterator[CheckedFinding]:
        """The findings that count."""
        return (entry for entry in self.findings if entry.waiver is None)


@record
class CheckReport:
    """The answer of `tieconv check`."""

    models: tuple[CheckedModel, ...]
    fail_on: Level
