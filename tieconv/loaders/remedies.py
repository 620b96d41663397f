"""Which recommended commands would make a model that a chosen loader stops at."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Inspection, State
from tieconv.checkpoint.prediction import Outcome
from tieconv.loaders.evidence.without_tensors import without_tensors
from tieconv.loaders.interface import Consumer

_DROPS = ("retie", "dedup")


def loadable(inspection: Inspection, chosen: Iterable[Consumer], findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """Return ``findings`` without the commands that drop a copy which one of the ``chosen`` loaders needs.

    The two would answer each other for ever: one drops the copy, the other writes it again. Where the copy is all that
    is wrong it is a note.
    """
    after = _without_copies(inspection)
    if after is None:
        return findings
    needing = [consumer for consumer in chosen if _stops(consumer, after) and not _stops(consumer, inspection)]
    spared = [_spared(finding, needing) if needing and _drops(finding) else finding for finding in findings]
    return tuple(sorted(spared, key=lambda finding: list(Level).index(finding.level)))


def _spared(finding: Finding, needing: list[Consumer]) -> Finding:
    """The finding without its command; what a loader stops at stays an error."""
    level = finding.level if finding.level is Level.ERROR else Level.NOTE
    who = " and ".join(f"{consumer.name} {consumer.version}" for consumer in needing)
    verb = "needs" if len(needing) == 1 else "need"
    needed = (
        f"{finding.message} {who} {verb} it." if finding.message[-1:] == "." else f"{finding.message}; {who} {verb} it"
    )
    return replace(finding, level=level, message=needed, remedy=None)


def _drops(finding: Finding) -> bool:
    action = finding.remedy.action if finding.remedy else None
    return action is not None and action.verb in _DROPS


def _stops(consumer: Consumer, inspection: Inspection) -> bool:
    return consumer.predict(inspection).outcome is Outcome.ERROR


def _without_copies(inspection: Inspection) -> Inspection | None:
    """The evidence that a model without the identical copies of its word embedding would give."""
    tie = inspection.word_tie
    copies = {member.name for member in tie.members if member.state is State.IDENTICAL} if tie else set()
    return without_tensors(inspection, copies) if copies else None
