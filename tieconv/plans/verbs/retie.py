"""Plan a re-tie: drop the redundant copies, keep the canonical name and set the tie flag."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NoReturn

from tieconv.architectures import loads_both
from tieconv.checkpoint.family import Role
from tieconv.checkpoint.finding import REVIEW_FIRST
from tieconv.checkpoint.inspection import Inspection, State
from tieconv.checkpoint.phrases import difference_clause
from tieconv.checkpoint.relation.proved import Scaled
from tieconv.checkpoint.tie_group import Member, Tie
from tieconv.checkpoint.value_type import Choice
from tieconv.checkpoint.weight_file import TensorRecord
from tieconv.checkpoint.write_plan import NormFold, Plan, Promises, RetieForecast
from tieconv.errors import RefusedError
from tieconv.loaders.load import load, releases
from tieconv.plans import biases
from tieconv.plans.build import EQUAL, build, promise, still_stored
from tieconv.plans.config import config_with_flag, set_flag
from tieconv.plans.edits import Edits
from tieconv.plans.flag_effect import guard_flip, keep_untied, reads_false, scaling_exponent
from tieconv.plans.guards import again, choose_values, guard, guard_class, guard_layout, guard_lone_config, refuse
from tieconv.plans.meaning import Note
from tieconv.plans.verbs.untie import plan_gguf_retie
from tieconv.text import OUT, Hint, shown


class Survivor(Choice):
    """The values that a forced re-tie keeps."""

    EMBED = "embed"
    HEAD = "head"
    MEAN = "mean"


def plan_retie(
    inspection: Inspection,
    *,
    bias: biases.BiasChoice = biases.BiasChoice.KEEP,
    survivor: Survivor | None = None,
    force: bool = False,
    fold: NormFold | None = None,
) -> Plan:
    """Return the plan that leaves one copy of each tied tensor.

    ``force`` with a ``survivor`` selects the values to keep. ``fold`` proves that a norm can hold the factors between
    the copies. Without either, raises `RefusedError` if the copies are not bit-equal. Also raises it if the flag
    would change the forward pass.
    """
    if inspection.checkpoint.format == "gguf":
        return plan_gguf_retie(inspection, bias=bias, forced=force or survivor is not None)
    if inspection.quantised_tables is not None:
        from tieconv.plans.quantised_ties import plan_quantised_retie  # most models are not quantised

        return plan_quantised_retie(inspection, bias=bias, force=force, inexact=survivor is Survivor.MEAN)
    guard(inspection, "retie")
    edits = Edits(inspection.checkpoint)
    exponent = _tied_exponent(inspection)
    notes: list[str | Note] = []
    ties = tuple(tie for tie in inspection.ties if tie.gated or tie.role is Role.WORD_EMBEDDING)
    # state-spaces' Mamba loads strictly, and its saved models have both names.
    whole = all(member.state in {*EQUAL, State.CANONICAL} for tie in ties for member in tie.members)
    for tie in () if whole and loads_both(inspection.checkpoint.config_values) else ties:
        notes += _merge(edits, inspection, tie, survivor if force else None, exponent, fold)
    notes += biases.apply(edits, inspection, bias, tied=True)
    after = edits.after()
    promises = Promises(True, tuple(promise(tie, True, after) for tie in still_stored(ties, edits)))
    options = {"bias": str(bias), "from": survivor and str(survivor), "force": str(force).lower()}
    options |= {"fold-norm": str(fold is not None).lower()}
    document = config_with_flag(inspection, True)
    return build("retie", inspection, edits, True, promises, options=options, notes=tuple(notes), document=document)


def forecast_retie(inspection: Inspection) -> RetieForecast:
    """Return the effects of a re-tie on the flag and the logits; reads only headers."""
    exponent, refused, before = 0, "", ""
    try:
        exponent = _tied_exponent(inspection)
    except RefusedError as error:
        refused = error.reason
    try:
        guard_layout(inspection)
        guard_lone_config(inspection, bool(set_flag(inspection, True)[1]))
    except RefusedError as error:
        before = f"{error.command_hint}: {error.reason}"
    return RetieForecast(_sets_flag(inspection), exponent, refused, before)


def _sets_flag(inspection: Inspection) -> bool:
    """Return whether some loader reads the model as untied, so that a re-tie sets the flag."""
    return not inspection.config.effective or reads_false(inspection)


def _tied_exponent(inspection: Inspection) -> int:
    """Return the power of two that multiplies the logits once the flag is true: 0 for most classes.

    Reads only headers. Raises `RefusedError` if no tensor values allow a re-tie.
    """
    guard_class(inspection, "retie")
    exponent = scaling_exponent(inspection, "retie") if _sets_flag(inspection) else 0
    if not inspection.config.effective:
        guard_flip(inspection, "retie")
    return exponent


def _merge(
    edits: Edits, inspection: Inspection, tie: Tie, survivor: Survivor | None, exponent: int, fold: NormFold | None
) -> tuple[Note, ...]:
    """Drop the members of one group except the canonical name, which is restored if it is missing."""
    stored = [member for member in tie.members if member.stored]
    reference = next(member for member in stored if member.state is State.CANONICAL)
    differing = [
        member for member in stored if member is not reference and not _fits(member, reference, exponent, inspection)
    ]
    note: tuple[Note, ...] = ()
    source = reference.name
    if differing and fold is not None:
        _guard_forced(inspection, tie, reference, differing, exponent)
        return folded(edits, inspection, tie, reference, differing, fold)
    if differing and survivor is Survivor.MEAN:
        _guard_forced(inspection, tie, reference, differing, exponent)
        return averaged(edits, inspection, tie, reference, differing)
    if differing:
        source, note = _settle(inspection, tie, reference, differing, survivor, exponent)
    canonical = tie.canonical
    for member in stored:
        if member.name in (canonical, source):
            continue
        if member in differing or member is reference or member.relation.is_empty:
            edits.drop(member.name, _because(member, canonical))
        else:
            times = exponent if member.state is State.SCALED else 0
            edits.drop_equal(member.name, reference.name, _because(member, canonical), times)
    if source != canonical and tie.canonical_stored:
        edits.replace_content(canonical, inspection.checkpoint.tensors[source])
        edits.drop(source, f"its values are stored as {canonical}")
    elif source != canonical:
        edits.rename(source, canonical)
    return note


def _because(member: Member, canonical: str) -> str:
    if member.relation.is_empty:
        return "it is empty"
    if member.state is State.ALIASED:
        return f"it shares its storage with {canonical}"
    if member.state is State.IDENTICAL:
        return f"equal to {canonical}, byte for byte"
    if member.relation.is_row_prefix:
        return f"equal to the first rows of {canonical}, byte for byte"
    if isinstance(member.relation, Scaled):
        return f"{canonical} times {member.relation.factor}, a factor that the tied forward pass applies itself"
    return f"replaced by {canonical}"


def _fits(member: Member, reference: Member, exponent: int, inspection: Inspection) -> bool:
    """Return whether the logits stay the same without ``member``; the tied forward pass scales by 2**exponent.

    A multiple of another dtype is rounded, so the scaled table does not replace it exactly.
    """
    if member.relation.is_empty:
        return True
    is_head = member.name == (inspection.head.output_head and inspection.head.output_head.name)
    if not exponent or not is_head:
        return member.state in EQUAL
    tensors, relation = inspection.checkpoint.tensors, member.relation
    alike = tensors[member.name].dtype == tensors[reference.name].dtype
    return isinstance(relation, Scaled) and relation.exact and alike and relation.factor == 2.0**exponent


def _settle(
    inspection: Inspection,
    tie: Tie,
    reference: Member,
    differing: list[Member],
    survivor: Survivor | None,
    exponent: int,
) -> tuple[str, tuple[Note, ...]]:
    """Return the name whose values stay when copies differ, and a note on the lost values.

    Raises `RefusedError` without a ``survivor``.
    """
    if survivor is None:
        _refuse_unequal(inspection, tie, reference, differing[0], exponent)
    if survivor is Survivor.EMBED and not exponent and _all_stored(tie, differing):
        dropped = [member.name for member in differing]
        text = f"{shown(reference.name)} stores all rows of {', '.join(map(shown, dropped))}: no value is lost"
        return reference.name, (Note(text, tuple(dropped)),)
    _guard_forced(inspection, tie, reference, differing, exponent)
    head = inspection.head.output_head
    unequal = {member.name for member in differing}
    source = head.name if survivor is Survivor.HEAD and head and head.name in unequal else reference.name
    lost = sorted((unequal | {reference.name}) - {source})
    differences = "; ".join(difference_clause(member) for member in differing)
    review = "" if all(member.relation.is_lossless_cast for member in differing) else f" {REVIEW_FIRST}"
    text = f"retie discards the values of {', '.join(map(shown, lost))} ({differences}){review}"
    return source, (Note(text, tuple(lost)),)


def _all_stored(tie: Tie, differing: list[Member]) -> bool:
    """Return whether loaders refuse the tied group for its row counts, but one embedding stores every row."""
    tied = tie.declared and tie.role is Role.WORD_EMBEDDING
    return tied and all(member.relation.is_row_prefix for member in differing)


def _guard_forced(inspection: Inspection, tie: Tie, reference: Member, differing: list[Member], exponent: int) -> None:
    """Refuse what even ``force`` cannot tie: other roles, other shapes, logits that the tied class would rescale."""
    tensors = inspection.checkpoint.tensors
    shapes = {tensors[member.name].shape for member in (reference, *differing)}
    if tie.role is not Role.WORD_EMBEDDING or len(shapes) > 1:
        _refuse_unequal(inspection, tie, reference, differing[0], exponent)
    if exponent:
        problem = f"a forced re-tie of {shown(differing[0].name)} would also rescale the logits of this architecture"
        refuse(problem, "keep the stored head", "flag.forward")


def _refuse_unequal(inspection: Inspection, tie: Tie, reference: Member, member: Member, exponent: int) -> NoReturn:
    sentence = (
        f"{shown(member.name)} is not a byte-identical copy of {shown(reference.name)}: {difference_clause(member)}"
    )
    if exponent and member.state in EQUAL:
        sentence = (
            f"{shown(member.name)} equals {shown(reference.name)}, but the tied forward pass would multiply "
            f"the logits by 2**{exponent}"
        )
    if tie.role is not Role.WORD_EMBEDDING:
        refuse(sentence, Hint("compare the two copies: ", again(inspection, "inspect", json=True)), "retie.not-equal")
    if member.relation.shape_differs:
        embedding = again(inspection, "retie", survivor="embed", force=True)
        stored = Hint("keep the embedding, which stores all of these rows: ", embedding)
        several = "a tied matrix has one shape: pad or trim the vocabulary first"
        refuse(sentence, stored if _all_stored(tie, [member]) else several, "retie.row-mismatch")
    if member.state is State.TRANSPOSED:  # untie refuses it too
        refuse(sentence, "store it in the shape of the embedding first", "retie.not-equal")
    untied = "the model is untied: nothing to change"  # with the flag false, untie would change nothing
    hint = keep_untied(inspection) if inspection.config.effective else untied
    if not exponent:
        before = Hint("measure what a re-tie loses: ", again(inspection, "analyze"))
        if isinstance(member.relation, Scaled) and member.relation.exact and member.relation.power_of_two:
            before = Hint("move the factor into the last norm: ", again(inspection, "retie", fold_norm=True))
        hint = Hint(hint, "; ", before, "; or ", choose_values(inspection, "retie", "embed", "head", force=True))
    refuse(sentence, hint, "retie.not-equal")


def folded(
    edits: Edits, inspection: Inspection, tie: Tie, reference: Member, differing: list[Member], fold: NormFold
) -> tuple[Note, ...]:
    """Drop the head and change the norm; return notes that count the rounded elements of the stored head.

    Raises `RefusedError` if another tensor of the group differs too.
    """
    if [member.name for member in differing] != [fold.head]:
        names = ", ".join(shown(member.name) for member in differing)
        problem = f"{names} differ from {shown(reference.name)}, but only a head can contain a folded norm"
        refuse(problem, again(inspection, "inspect"), "fold.group")
    tensors = inspection.checkpoint.tensors
    norms = " and ".join(map(shown, fold.values))
    for name, data in fold.values.items():
        edits.give(tensors[name], data, f"its values times the column factors of {fold.head}, exact")
    for member in tie.members:
        if not member.stored or member.name in (tie.canonical, reference.name):
            continue
        if member.name == fold.head:
            moved = f"the factors moved into {' and '.join(fold.values)}"
            edits.drop(member.name, f"{tie.canonical} times {moved}, byte for byte")
        else:
            edits.drop_equal(member.name, reference.name, f"equal to {tie.canonical}, byte for byte")
    if reference.name != tie.canonical:
        edits.rename(reference.name, tie.canonical)
    tensors_changed = (fold.head, *fold.values)
    return (Note(_note(fold, norms), tensors_changed), *_passed_over(inspection, fold))


def _passed_over(inspection: Inspection, fold: NormFold) -> Iterator[Note]:
    """Yield a note for each release that ignores the head: transformers 4, if the config says tied."""
    for release in releases(inspection):
        if load(inspection, release).source(fold.head) != fold.head:
            yield Note(
                f"the config says tied, so transformers {release.partition('.')[0]} ignored {shown(fold.head)} and "
                f"computed the logits without these factors {REVIEW_FIRST}"
            )


def _note(fold: NormFold, norms: str) -> str:
    if not fold.rounded:
        return f"retie moves the head factors into {norms}: every product is exact, so the logits stay the same"
    return (
        f"retie moves the head factors into {norms}: {fold.rounded:,} of {fold.elements:,} elements of "
        f"{shown(fold.head)} were rounded, so the logits change"
    )


_ALIKE = frozenset({State.NEAR, State.DISTINCT})
"""States that allow a mean: neither table is a transpose, multiple or cast of the other."""


def averaged(
    edits: Edits, inspection: Inspection, tie: Tie, reference: Member, differing: list[Member]
) -> tuple[Note, ...]:
    """Store the mean of input embedding and head under the canonical name. Return a note on the lost values.

    Raises `RefusedError` when the mean is unclear: more than two different tables, two dtypes, a multiple, or a
    strided view. The executor checks that the elements are finite when it reads them.
    """
    _guard_pair(inspection, tie, reference, differing)
    first, second = (inspection.checkpoint.tensors[member.name] for member in (reference, differing[0]))
    _guard_records(inspection, first, second, differing[0])
    for member in tie.members:
        if not member.stored or member.name == tie.canonical:
            continue
        because = f"the mean is stored as {tie.canonical}"
        if member in differing or member is reference:
            edits.drop(member.name, because)
        else:
            edits.drop_equal(member.name, reference.name, because)
    edits.average(tie.canonical, first, second)
    lost = " and ".join(sorted(map(shown, (first.name, second.name))))
    text = f"retie replaces {lost} by their mean ({difference_clause(differing[0])}) {REVIEW_FIRST}"
    return (Note(text, (first.name, second.name)),)


def _guard_pair(inspection: Inspection, tie: Tie, reference: Member, differing: list[Member]) -> None:
    """Refuse unless exactly one of embedding and head differs.

    The other one is the reference, or equals the reference, such as an encoder's separate table.
    """
    view = inspection.head
    ends = {part.name for part in (view.input_embedding, view.output_head) if part}
    equal = {member.name for member in tie.members} - {differing[0].name}
    if len(differing) == 1 and len(ends & equal) == 1 and differing[0].name in ends:
        return
    names = ", ".join(shown(member.name) for member in (reference, *differing))
    problem = f"{names} differ, but retie averages only one input embedding and one head"
    refuse(problem, _choose(inspection), "mean.pair")


def _guard_records(inspection: Inspection, first: TensorRecord, second: TensorRecord, differing: Member) -> None:
    names = f"{shown(first.name)} and {shown(second.name)}"
    if first.dtype != second.dtype:
        problem = f"{names} are {shown(first.dtype)} and {shown(second.dtype)}: the dtype of their mean is not clear"
        refuse(problem, _choose(inspection), "mean.dtype")
    if differing.state not in _ALIKE:
        clause = difference_clause(differing)
        why = f"{shown(differing.name)}{clause.removeprefix('it')}" if clause.startswith("it ") else clause
        refuse(f"{names} have no useful mean: {why}", _choose(inspection), "mean.state")
    if first.stride is not None or second.stride is not None:
        hint = Hint("write contiguous tensors first: ", again(inspection, "convert", out=OUT, to="safetensors"))
        refuse(f"{names} are not both stored as contiguous rows", hint, "mean.stride")


def _choose(inspection: Inspection) -> Hint:
    either = Hint("embed|head", python="'embed'")
    hint = Hint("choose the values to keep: ", again(inspection, "retie", survivor=either, force=True))
    return Hint(hint, python=f"{hint.python} (or survivor='head')")
