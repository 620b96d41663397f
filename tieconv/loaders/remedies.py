"""Remove recommended commands whose result a chosen loader refuses."""

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

    Otherwise one command would drop the copy, and the next finding would recommend writing it again. A finding
    without a command becomes a note, unless it is an error.
    """
    after = _without_copies(inspection)
    if after is None:
        return findings
    needing = [consumer for consumer in chosen if _stops(consumer, after) and not _stops(consumer, inspection)]
    spared = [_spared(finding, needing) if needing and _drops(finding) else finding for finding in findings]
    return tuple(sorted(spared, key=lambda finding: list(Level).index(finding.level)))


def _spared(finding: Finding, needing: list[Consumer]) -> Finding:
    """Return the finding without its command, as a note; an error stays an error."""
    level = finding.level if finding.level is Level.ERROR else Level.NOTE
    who = " and ".join(f"{consumer.name} {consumer.version}" for consumer in needing)
    verb = "needs" if len(needing) == 1 else "need"
    needs = f"{who} {verb} the copy"
    ends = finding.message[-1:] == "."
    message = f"{finding.message} {needs}." if ends else f"{finding.message}; {needs}"
    return replace(finding, level=level, message=message, remedy=None)


def _drops(finding: Finding) -> bool:
    action = finding.remedy.action if finding.remedy else None
    return action is not None and action.verb in _DROPS


def _stops(consumer: Consumer, inspection: Inspection) -> bool:
    return consumer.predict(inspection).outcome is Outcome.ERROR


def _without_copies(inspection: Inspection) -> Inspection | None:
    """Return the evidence without the identical copies of the word embedding, or ``None`` if there are none."""
    tie = inspection.word_tie
    copies = {member.name for member in tie.members if member.state is State.IDENTICAL} if tie else set()
    return without_tensors(inspection, copies) if copies else None
