"""Which recommended commands would make a model that a chosen loader stops at."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Inspection, State, Tie
from tieconv.checkpoint.prediction import Outcome
from tieconv.checkpoint.relation.interface import Absent
from tieconv.loaders.interface import Consumer

_DROPS = ("retie", "dedup")


def loadable(inspection: Inspection, chosen: Iterable[Consumer], findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """``findings`` without the commands that drop a copy which one of the ``chosen`` loaders needs.

    The two would answer each other for ever: one drops the copy, the other writes it again. Where the copy is all that
    is wrong it is a note.
    """
    after = _without_copies(inspection)
    if after is None:
        return findings
    needing = [one for one in chosen if _stops(one, after) and not _stops(one, inspection)]
    told = [_spared(found, needing) if needing and _drops(found) else found for found in findings]
    return tuple(sorted(told, key=lambda found: list(Level).index(found.level)))


def _spared(finding: Finding, needing: list[Consumer]) -> Finding:
    """The finding without its command; what a loader stops at stays an error."""
    level = finding.level if finding.level is Level.ERROR else Level.NOTE
    who = " and ".join(f"{one.name} {one.version}" for one in needing)
    verb = "needs" if len(needing) == 1 else "need"
    needed = (
        f"{finding.message} {who} {verb} it." if finding.message[-1:] == "." else f"{finding.message}; {who} {verb} it"
    )
    return replace(finding, level=level, message=needed, remedy=None)


def _drops(finding: Finding) -> bool:
    action = finding.remedy.action if finding.remedy else None
    return action is not None and action.verb in _DROPS


def _stops(consumer: Consumer, inspection: Inspection) -> bool:
    return consumer.judge(inspection).outcome is Outcome.ERROR


def _without_copies(inspection: Inspection) -> Inspection | None:
    """The evidence that a model without the identical copies of its word embedding would give."""
    tie = inspection.word_tie
    copies = {member.name for member in tie.members if member.state is State.IDENTICAL} if tie else set()
    if tie is None or not copies:
        return None
    checkpoint, head = inspection.checkpoint, inspection.head.output_head
    files = tuple(
        replace(file, tensors=tuple(tensor for tensor in file.tensors if tensor.name not in copies))
        for file in checkpoint.files
    )
    if head is not None and head.name in copies:
        head = replace(head, stored=False, tied_to=tie.canonical)
    return replace(
        inspection,
        checkpoint=replace(checkpoint, files=files),
        head=replace(inspection.head, output_head=head),
        ties=tuple(_absent(one, copies) for one in inspection.ties),
    )


def _absent(tie: Tie, names: set[str]) -> Tie:
    members = tuple(
        replace(member, stored=False, relation=Absent()) if member.name in names else member for member in tie.members
    )
    return replace(tie, members=members)
