"""Plan a change of the tie flag alone, at every level; refuse it if a tensor would be lost."""

from __future__ import annotations

from typing import NoReturn

from tieconv.architectures.effective_flag import is_foreign, reading_v4, scales_v5
from tieconv.checkpoint.family import Role, Tying
from tieconv.checkpoint.finding import REVIEW_FIRST
from tieconv.checkpoint.inspection import Inspection, State
from tieconv.checkpoint.phrases import difference_clause
from tieconv.checkpoint.quantised_matrix import HEAD, PairState, QuantisedTables, quantised_twin
from tieconv.checkpoint.tie_group import BiasState, Member, Tie
from tieconv.checkpoint.value_type import Choice, record
from tieconv.checkpoint.write_plan import Plan, Promises
from tieconv.plans.build import ALIKE, EQUAL, build, has_own_head, promise
from tieconv.plans.config import config_with_flag
from tieconv.plans.edits import Edits
from tieconv.plans.flag_effect import always_tied, apart_note, guard_flip, keep_untied, reads_false, scales
from tieconv.plans.guards import again, guard_head, guard_layout, refuse
from tieconv.plans.meaning import Note
from tieconv.text import Hint, shown

_PLAINLY_APART = frozenset({State.DISTINCT, State.NEAR, State.SCALED})


class Flag(Choice):
    """The new value of the flag."""

    TRUE = "true"
    FALSE = "false"
    AUTO = "auto"  # the value that matches the tensors


def plan_set_tie(inspection: Inspection, flag: Flag, *, force: bool) -> Plan:
    """Return the plan that writes the flag at every level of the config that a loader reads.

    Without ``force``, raises `RefusedError` if a loader would discard a stored tensor or start an absent one random.
    Also raises it if the flag changes the forward pass, or if ``auto`` finds no clear answer in the tensors.
    """
    _guard(inspection, flag, force)
    tied = _auto(inspection) if flag is Flag.AUTO else flag is Flag.TRUE
    _guard_meaning(inspection, tied, force)
    lost = losses(inspection, tied)
    if lost and not force:
        refuse(lost[0].sentence, lost[0].hint, lost[0].code)
    notes = (*(Note(f"{loss.sentence} {REVIEW_FIRST}", loss.tensors) for loss in lost), *_stays(inspection, tied))
    effective = tied if inspection.family.tying is Tying.CAN else inspection.config.effective
    always, stored = inspection.family.tying is Tying.ALWAYS, inspection.checkpoint.tensors
    ties = tuple(promise(tie, tie.declared if always or not tie.gated else tied, stored) for tie in inspection.ties)
    promises = Promises(effective, ties)
    options = {"flag": str(flag), "force": str(force).lower()}
    edits, document = Edits(inspection.checkpoint), config_with_flag(inspection, tied)
    plan = build(
        "set-tie", inspection, edits, tied, promises, options=options, notes=notes, document=document, forced=force
    )
    tables = inspection.quantised_tables
    if tables is None:
        return plan
    from tieconv.plans.quantised_ties import with_loader_notes  # most models are not quantised

    hint = Hint("accept it with: ", again(inspection, f"set-tie {flag}", force=True))
    return with_loader_notes(plan, inspection, tables, forced=force, hint=hint)


def _guard(inspection: Inspection, flag: Flag, force: bool) -> None:
    guard_layout(inspection)
    if not force:
        guard_head(inspection, f"set-tie {flag}")
    if inspection.checkpoint.config is None:
        problem = f"{shown(inspection.checkpoint.source)} has no config.json to write the flag to"
        refuse(problem, "give the model's directory", "config.absent")


def _guard_meaning(inspection: Inspection, tied: bool, force: bool) -> None:
    """Refuse a change of the flag that also changes the forward pass.

    A note says so if transformers 4 then computes what transformers 5 computes already.
    """
    effective, family = inspection.config.effective, inspection.family
    # A class that never ties may still scale its logits by the flag.
    never = family.tying is Tying.NEVER
    if ((effective or never) and not reads_false(inspection)) is tied:
        return
    verb = "retie" if tied else "untie"
    if family.tying is Tying.CAN:
        guard_flip(inspection, verb)
    head = inspection.head.output_head
    agrees, own = scales_v5(inspection) is tied, not tied and has_own_head(inspection)
    if (agrees or own) and (force or (head is not None and not head.stored)):
        return
    if scales(inspection.family):
        hint = Hint("rewrite the head, if that is exact: ", again(inspection, verb))
        if own:
            hint = keep_untied(inspection)
        elif agrees:
            hint = Hint("accept it with: ", again(inspection, f"set-tie {str(tied).lower()}", force=True))
        elif never:
            hint = Hint("keep the flag: ", again(inspection, f"set-tie {str(not tied).lower()}"))
        refuse(
            f"some transformers versions multiply the logits of {family.architecture} by d_model**-0.5 if the flag is "
            "true, so its outputs would change",
            hint,
            "flag.forward",
        )
    if not tied and (sentence := always_tied(inspection)):
        refuse(sentence, Hint("keep the flag: ", again(inspection, "set-tie true")), "tie.always")


def _auto(inspection: Inspection) -> bool:
    """Return true if all names have one tensor, and false if each name has a separate tensor."""
    if inspection.family.tying is Tying.NEVER:
        # The flag of such a class may scale the logits, and no tensor shows whether it should.
        return scales(inspection.family) and not reads_false(inspection)
    if inspection.quantised_tables is not None:
        return _quantised_auto(inspection, inspection.quantised_tables)
    tie = inspection.word_tie
    if tie is None:
        hint = Hint("look for other names of both: ", again(inspection, "inspect"))
        _open(inspection, "neither the input embedding nor the output head is stored", hint)
    if not tie.canonical_stored:
        _open(inspection, f"{shown(tie.canonical)} is absent, but another name of its group is stored")
    copies = [member for member in decided(inspection, tie) if member.name != tie.canonical]
    if all(member.state in ALIKE or member.relation.is_empty for member in copies):
        return True
    unclear = [member for member in copies if not _plainly_apart(member)]
    if not unclear or all(member.state in EQUAL for member in unclear):
        return False
    first = unclear[0]
    reason = "is absent, but another name is stored separately" if not first.stored else difference_clause(first)
    misshapen = first.relation.shape_differs or first.state is State.TRANSPOSED
    reshape = "store it in the shape of the embedding first" if misshapen else ""
    return _open(inspection, f"{shown(first.name)}: {reason}", reshape)


def _quantised_auto(inspection: Inspection, tables: QuantisedTables) -> bool:
    """Return true if no head is stored, or if all its parts equal the embedding's."""
    from tieconv.plans.quantised_ties import float_table

    if tables.of(HEAD) is None and float_table(inspection, inspection.family.output_head) is None:
        return True
    relation = tables.relation
    if relation is None or relation.state is PairState.UNREAD:
        _open(inspection, relation.reason if relation else "the embedding is not stored")
    return relation.state is PairState.EQUAL


def _plainly_apart(member: Member) -> bool:
    misshapen = member.relation.shape_differs or member.relation.is_empty
    return member.state in _PLAINLY_APART and not misshapen and not member.relation.sign_of_zero_only


def _open(inspection: Inspection, why: str, hint: str = "") -> NoReturn:
    refuse(
        f"{shown(inspection.checkpoint.source)}: the tensors do not show whether the model is tied: {why}",
        hint or Hint("choose one: ", again(inspection, "untie"), ", or ", again(inspection, "retie")),
        "set-tie.ambiguous",
    )


def _stays(inspection: Inspection, tied: bool) -> tuple[str | Note, ...]:
    """Return notes on stored tensors that a loader ignored, or will ignore."""
    if inspection.quantised_tables is not None:
        head = inspection.quantised_tables.of(HEAD) if tied else None
        name = shown(head.name) if head else ""
        return (f"the parts of {name} stay stored although the model is tied: tieconv retie drops them",) * bool(head)
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
        if member.state in EQUAL and not is_foreign(inspection.checkpoint.config_values)
    ]
    return tuple(
        f"{shown(name)} stays stored although the model is tied: tieconv retie drops it" for name in copies[:1]
    )


# Find what a change of the tie flag alone loses: discarded heads, and heads that start random.
@record
class Loss:
    """The ``tensors`` whose values setting the flag would lose, with the text of the refusal."""

    sentence: str
    hint: str
    code: str
    tensors: tuple[str, ...]


def losses(inspection: Inspection, tied: bool) -> list[Loss]:
    """Return what setting the flag to ``tied`` would lose; empty if nothing is lost."""
    tables = inspection.quantised_tables
    if tables is not None:
        return [*(_never(inspection) if tied else ()), *_quantised(inspection, tables, tied)]
    if tied:
        return [*_never(inspection), *(loss for tie in gated(inspection) for loss in _discarded(inspection, tie))]
    return [loss for tie in gated(inspection) for loss in _random(inspection, tie)] or _no_head(inspection)


def gated(inspection: Inspection) -> list[Tie]:
    """Return the groups that the flag decides, the word embedding first."""
    groups = [tie for tie in inspection.ties if tie.gated or tie.role is Role.WORD_EMBEDDING]
    return sorted(groups, key=lambda tie: tie.role is not Role.WORD_EMBEDDING)


def decided(inspection: Inspection, tie: Tie) -> list[Member]:
    """Return the members that the flag decides: all, or only the head if the class always shares the others."""
    head = inspection.head.output_head
    return [member for member in tie.members if tie.gated or (head is not None and member.name == head.name)]


def _never(inspection: Inspection) -> list[Loss]:
    if inspection.family.tying is not Tying.NEVER or scales(inspection.family):
        return []
    label = inspection.family.architecture
    head = inspection.head.output_head
    sentence = f"{label} always has a separate head, so the flag cannot be true"
    return [Loss(sentence, again(inspection, "set-tie false"), "tie.never", (head.name,) if head else ())]


def _discarded(inspection: Inspection, tie: Tie) -> list[Loss]:
    canonical = tie.canonical
    if not tie.canonical_stored:
        loaders = "some loaders read" if reading_v4(inspection) is None else "transformers 4 reads"
        problem = f"{shown(canonical)} is not stored, and {loaders} the tied values only from that name"
        back = Hint("restore this name: ", again(inspection, "retie"))
        return [Loss(problem, back, "set-tie.inverted", tuple(member.name for member in tie.members))]
    hint = Hint("set the flag to match the stored tensors: ", again(inspection, "set-tie false"))
    if scales(inspection.family) and inspection.config.effective:
        hint = keep_untied(inspection)
    if not inspection.config.effective:
        same = "the flag already matches the stored tensors; compare the two tables: "
        hint = Hint(same, again(inspection, "analyze"))
    unlike = [m for m in decided(inspection, tie) if m.stored and m.state not in ALIKE]
    fate = "with the flag true, transformers 4 silently discards it and transformers 5 keeps it"
    sentences = [f"{shown(m.name)} is not {shown(canonical)} ({difference_clause(m)}): {fate}" for m in unlike]
    return [Loss(text, hint, "set-tie.discards", (m.name,)) for text, m in zip(sentences, unlike, strict=True)]


def _random(inspection: Inspection, tie: Tie) -> list[Loss]:
    value = "at zero" if tie.role is Role.OUTPUT_BIAS else "random"
    problem = f"is not stored: with the flag false, it would start {value}"
    hint = Hint("store it: ", again(inspection, "untie"))
    missing = [member.name for member in decided(inspection, tie) if _is_missing(inspection, tie, member)]
    return [Loss(f"{shown(name)} {problem}", hint, "set-tie.random", (name,)) for name in missing]


def _is_missing(inspection: Inspection, tie: Tie, member: Member) -> bool:
    """Return whether the name has no stored values; an all-zero bias is never missing, because it starts at zero."""
    bias = inspection.head.output_bias
    if tie.role is Role.OUTPUT_BIAS and bias is not None and bias.state is BiasState.ZERO:
        return False
    empty = member.relation.is_empty
    return (not member.stored or empty) and quantised_twin(member.name, inspection.checkpoint.tensors) is None


def _no_head(inspection: Inspection) -> list[Loss]:
    """Return the loss of a head whose group has no stored tensor."""
    head = inspection.head.output_head
    if head is None or head.stored or quantised_twin(head.name, inspection.checkpoint.tensors):
        return []
    if any(member.name == head.name for tie in inspection.ties for member in tie.members):
        return []
    sentence = f"{shown(head.name)} is not stored, and neither is a tensor that it could be tied to"
    return [Loss(sentence, again(inspection, "inspect"), "set-tie.random", (head.name,))]


def _quantised(inspection: Inspection, tables: QuantisedTables, tied: bool) -> list[Loss]:
    """Return what the flag loses if the embedding or the head is stored in parts."""
    from tieconv.plans.quantised_ties import float_table, head_name, separate_hint, unequal_clause

    name = head_name(inspection)
    for matrix in tables.matrices:
        for fault in matrix.faults[:1]:
            sentence = f"the quantised {shown(matrix.name)} is broken: {fault.reason}"
            return [Loss(sentence, again(inspection, "inspect"), "quantised.broken", fault.tensors)]
    if tables.of(HEAD) is None and float_table(inspection, name) is None:
        sentence = f"{shown(name)} is not stored: with the flag false, it would start random"
        return (
            [] if tied else [Loss(sentence, Hint("store it: ", again(inspection, "untie")), "set-tie.random", (name,))]
        )
    if not tied or (tables.relation is not None and tables.relation.state is PairState.EQUAL):
        return []
    sentence = (
        f"{shown(name)} is not a copy of the embedding ({unequal_clause(tables)}): with the flag true, loaders fail or "
        "lose a matrix"
    )
    return [Loss(sentence, separate_hint(inspection), "set-tie.discards", (name,))]
