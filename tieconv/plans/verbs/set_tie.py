"""The tie flag alone: written at every level, no tensor touched, refused where that would lose a tensor."""

from __future__ import annotations

from enum import StrEnum
from typing import NoReturn

from tieconv.checkpoint.family import FlagMeaning, Tying
from tieconv.checkpoint.finding import REVIEW_FIRST
from tieconv.checkpoint.inspection import Inspection, State
from tieconv.checkpoint.phrases import is_apart
from tieconv.checkpoint.tie_group import Member, Tie
from tieconv.checkpoint.write_plan.plan import Plan, Promises, TiePromise
from tieconv.plans.build import ALIKE, build
from tieconv.plans.edits import Edits
from tieconv.plans.flag_effect import always_tied, apart_note, guard_flip, reads_false
from tieconv.plans.guards import again, guard_head, guard_layout, refuse
from tieconv.plans.meaning import Note
from tieconv.plans.verbs.flag_losses import decided, gated, losses
from tieconv.text import shown

_PLAINLY_APART = frozenset({State.DISTINCT, State.NEAR, State.SCALED})


class Flag(StrEnum):
    """What the flag is to say."""

    TRUE = "true"
    FALSE = "false"
    AUTO = "auto"  # what the tensors say


def plan_set_tie(inspection: Inspection, flag: Flag, *, force: bool = False) -> Plan:
    """The plan that writes the flag at every level of the config that a loader reads.

    Raises `RefusedError` where a stored tensor would be discarded or an absent one start random, unless ``force``;
    where the flag changes the forward pass; and, for ``auto``, where the tensors leave the answer open.
    """
    _guard(inspection, flag, force)
    tied = _auto(inspection) if flag is Flag.AUTO else flag is Flag.TRUE
    _guard_meaning(inspection, tied)
    lost = losses(inspection, tied)
    if lost and not force:
        refuse(lost[0].sentence, lost[0].hint, lost[0].code)
    notes = (
        *(Note(f"{loss.sentence} {REVIEW_FIRST}", loss.tensors) for loss in lost),
        *_stays(inspection, tied),
    )
    effective = tied if inspection.family.tying is Tying.CAN else inspection.config.effective
    promises = Promises(effective, tuple(_promise(inspection, tie, tied) for tie in inspection.ties))
    options = {"flag": str(flag), "force": str(force).lower()}
    return build(
        "set-tie",
        inspection,
        Edits(inspection.checkpoint),
        tied=tied,
        promises=promises,
        options=options,
        notes=notes,
        forced=force,
    )


def _guard(inspection: Inspection, flag: Flag, force: bool) -> None:
    guard_layout(inspection)
    if not force:
        guard_head(inspection, f"set-tie {flag}")
    if inspection.checkpoint.config is None:
        refuse(
            f"{shown(inspection.checkpoint.source)} has no config.json to write the flag to",
            "give the model's directory",
            "config.absent",
        )


def _guard_meaning(inspection: Inspection, tied: bool) -> None:
    """Refuse a change of the flag that changes the forward pass, or more than the table can list."""
    effective, family = inspection.config.effective, inspection.family
    # A class that never ties may still scale its logits by the flag.
    obeyed = effective or family.tying is Tying.NEVER
    flips = not effective or reads_false(inspection) if tied else obeyed and not reads_false(inspection)
    if not flips:
        return
    verb = "retie" if tied else "untie"
    if family.tying is Tying.CAN:
        guard_flip(inspection, verb)
    meanings = {family.meaning_v5} | ({family.meaning_v4} if family.default_v4 is not None else set())
    if meanings != {FlagMeaning.STORAGE}:
        refuse(
            f"{family.architecture} multiplies its logits by d_model**-0.5 while the flag is true, in one transformers "
            "major version at least, so the flag alone would change what it computes",
            f"tieconv {verb}, which rewrites the head where that is exact",
            "flag.forward",
        )
    if not tied and (sentence := always_tied(inspection)):
        refuse(sentence, f"keep the flag: {again(inspection, 'set-tie true')}", "tie.always")


def _auto(inspection: Inspection) -> bool:
    """What the tensors say: true where one tensor serves all names, false where each name has its own."""
    if inspection.family.tying is Tying.NEVER:
        return False
    tie = inspection.word_tie
    if tie is None:
        _open(inspection, "neither the input nor the output embedding is stored")
    if not tie.canonical_stored:
        _open(inspection, f"{shown(tie.canonical)} is absent and another name of its group is stored")
    copies = [member for member in decided(inspection, tie) if member.name != tie.canonical]
    if all(member.state in ALIKE or member.relation.is_empty for member in copies):
        return True
    unclear = [member for member in copies if not _plainly_apart(member)]
    if not unclear or all(member.state in (State.IDENTICAL, State.ALIASED) for member in unclear):
        return False
    first = unclear[0]
    reason = "is absent while another name is stored apart" if not first.stored else is_apart(first)
    return _open(inspection, f"{shown(first.name)}: {reason}")


def _plainly_apart(member: Member) -> bool:
    misshapen = member.relation.shape_differs or member.relation.is_empty
    return member.state in _PLAINLY_APART and not misshapen and not member.relation.sign_of_zero_only


def _open(inspection: Inspection, why: str) -> NoReturn:
    refuse(
        f"{shown(inspection.checkpoint.source)}: the tensors do not say whether the model is tied: {why}",
        f"decide it: {again(inspection, 'untie')}, or {again(inspection, 'retie')}",
        "set-tie.ambiguous",
    )


def _stays(inspection: Inspection, tied: bool) -> tuple[str | Note, ...]:
    """What stays stored that a loader passed over, or will."""
    if not tied:
        members = [(tie, member) for tie in gated(inspection) for member in decided(inspection, tie)]
        return tuple(
            note
            for tie, member in members
            if member.state not in ALIKE and member.stored
            for note in apart_note(inspection, tie, member)
        )
    copies = [
        member.name
        for tie in gated(inspection)
        for member in tie.stored_members
        if member.state in (State.IDENTICAL, State.ALIASED)
    ]
    return tuple(f"{shown(name)} stays stored although tied: tieconv retie drops it" for name in copies[:1])


def _promise(inspection: Inspection, tie: Tie, tied: bool) -> TiePromise:
    always = inspection.family.tying is Tying.ALWAYS
    declared = tie.declared if not tie.gated or always else tied
    names = {member.name: member.stored for member in tie.members}
    return TiePromise(
        tie.canonical,
        declared,
        tuple(name for name, stored in names.items() if stored),
        tuple(name for name, stored in names.items() if not stored),
    )
