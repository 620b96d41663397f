"""Plan changes of the head bias alone: add, remove, unify or resize it. The tie does not change."""

from __future__ import annotations

from collections.abc import Callable

from tieconv.architectures import locate
from tieconv.architectures.effective_flag import reading_v4
from tieconv.checkpoint.family import Role
from tieconv.checkpoint.finding import REVIEW_FIRST
from tieconv.checkpoint.inspection import Inspection, State
from tieconv.checkpoint.phrases import difference_clause
from tieconv.checkpoint.tie_group import BiasState, Tie
from tieconv.checkpoint.value_type import Choice
from tieconv.checkpoint.weight_file import BITS, FLOATS, ByteRange, TensorRecord
from tieconv.checkpoint.write_plan import Plan
from tieconv.loaders.load import head_bias
from tieconv.plans import biases
from tieconv.plans.build import ALIKE, build, kept_promises, still_stored
from tieconv.plans.edits import Edits
from tieconv.plans.guards import again, choose_values, guard_head, refuse
from tieconv.plans.meaning import Note, Notes
from tieconv.text import Hint, count, option, shown

IsZero = Callable[[TensorRecord], bool]
"""Prove whether every value of the record is zero."""


class BiasSurvivor(Choice):
    """The values that `bias unify` keeps when two copies differ."""

    BIAS = "bias"  # the outer name, which transformers 4 reads
    DECODER = "decoder"  # the inner name, which transformers 5 reads


def plan_bias_zero(inspection: Inspection) -> Plan:
    """Return the plan that adds an all-zero head bias if the model has none. Raises `RefusedError`."""
    guard_head(inspection, "bias zero")
    head = inspection.head
    like = head.output_head if head.output_head and head.output_head.shape else head.input_embedding
    if like and like.dtype and like.dtype not in FLOATS:
        problem = f"{shown(like.name)} is quantised ({shown(like.dtype)}), so tieconv cannot tell the dtype of its bias"
        refuse(problem, "work on the unquantised checkpoint and quantise again", "bias.dtype")
    edits = Edits(inspection.checkpoint)
    notes = biases.apply(edits, inspection, biases.BiasChoice.ZERO, tied=inspection.config.effective)
    return _plan("bias zero", inspection, edits, notes)


def plan_bias_strip(inspection: Inspection) -> Plan:
    """Return the plan that removes an all-zero head bias. Raises `RefusedError` if a value is not zero."""
    guard_head(inspection, "bias strip")
    edits = Edits(inspection.checkpoint)
    notes = biases.apply(edits, inspection, biases.BiasChoice.STRIP, tied=inspection.config.effective)
    return _plan("bias strip", inspection, edits, notes)


def plan_bias_unify(inspection: Inspection, survivor: BiasSurvivor | None = None) -> Plan:
    """Return the plan that gives both names of a head bias the same values.

    A tied model stores the canonical name, and an untied model stores both names. Raises `RefusedError` if the copies
    differ without a ``survivor``, or if the bias of the class has only one name.
    """
    guard_head(inspection, "bias unify")
    # The tied group of the bias; at least one of its names is stored.
    label = inspection.family.architecture or "this architecture"
    if not any(group.role is Role.OUTPUT_BIAS for group in inspection.family.groups):
        refuse(f"the head bias of {label} does not have two names", again(inspection, "inspect"), "bias.no-pair")
    tie = next((tie for tie in inspection.ties if tie.role is Role.OUTPUT_BIAS), None)
    if tie is None:
        problem = f"{shown(inspection.checkpoint.source)} stores no head bias"
        refuse(problem, Hint("add one: ", again(inspection, "bias zero")), "bias.absent")
    edits = Edits(inspection.checkpoint)
    differing = [member for member in tie.stored_members if member.state not in ALIKE]
    source = next(member.name for member in tie.members if member.state is State.CANONICAL)
    notes: tuple[Note, ...] = ()
    if differing:
        if survivor is None:
            refuse(
                f"{shown(differing[0].name)} and {shown(source)} differ: {difference_clause(differing[0])}; "
                f"{_readers(inspection)}",
                choose_values(inspection, "bias unify", "bias", "decoder"),
                "bias.copies-differ",
            )
        source, notes = _choose(inspection, tie, survivor)
    _store(edits, inspection, tie, source, bool(differing))
    return _plan("bias unify", inspection, edits, notes, {"from": survivor and str(survivor)})


def _readers(inspection: Inspection) -> str:
    """Return the name that each transformers version reads, as a clause."""
    read = {version: bias.stored for version, bias in sorted(head_bias(inspection).items())}
    return ", ".join(f"transformers {version} reads {shown(name)}" for version, name in read.items() if name)


def _choose(inspection: Inspection, tie: Tie, survivor: BiasSurvivor) -> tuple[str, tuple[Note, ...]]:
    """Return the name whose values stay, and a note on the lost values. Both names are stored."""
    inner = survivor is BiasSurvivor.DECODER
    source = next(member.name for member in tie.members if member.name.endswith("decoder.bias") is inner)
    lost = next(member.name for member in tie.members if member.name != source)
    read = [f"transformers {version}" for version, bias in head_bias(inspection).items() if bias.stored == lost]
    readers = f"{' and '.join(read)} {'reads' if len(read) == 1 else 'read'}"
    who = f"which {readers}" if read else "which no version of transformers reads"
    review = f" {REVIEW_FIRST}" if read else ""
    return source, (Note(f"bias unify discards the values of {shown(lost)}, {who}{review}", (lost,)),)


def _store(edits: Edits, inspection: Inspection, tie: Tie, source: str, differing: bool) -> None:
    tensors = inspection.checkpoint.tensors
    shared = tie.declared and reading_v4(inspection) is not False
    wanted = {tie.canonical} if shared else {member.name for member in tie.members}
    moved = source not in wanted and tie.canonical not in tensors
    for member in tie.members:
        if member.name in wanted and member.name != source:
            if not member.stored and not moved:
                edits.copy(member.name, tensors[source])
            elif member.stored and differing:
                edits.replace_content(member.name, tensors[source])
        elif member.stored and member.name not in wanted and not moved:
            because = f"its values are stored as {tie.canonical}"
            if differing or member.name == source:
                edits.drop(member.name, because)
            else:
                edits.drop_equal(member.name, source, because)
    if moved:
        edits.rename(source, tie.canonical)


def plan_bias_resize(inspection: Inspection, rows: int | None, is_zero: IsZero) -> Plan:
    """Return the plan that gives every stored head bias ``rows`` entries; ``None`` means the rows of the head.

    It adds zeros at the end. It cuts off the end only if ``is_zero`` proves every value there zero. Raises
    `RefusedError` if the bias is absent, has more than one row, or would lose a nonzero value.
    """
    guard_head(inspection, "bias resize")
    tensors, bias = inspection.checkpoint.tensors, inspection.head.output_bias
    names = {locate(inspection.family, name, tensors) for name in inspection.family.output_biases}
    if bias is not None and bias.state is not BiasState.ABSENT:
        names.add(bias.name)
    stored = [tensors[name] for name in sorted(name for name in names if name is not None)]
    if not stored:
        problem = f"{shown(inspection.checkpoint.source)} stores no head bias"
        refuse(problem, Hint("add one: ", again(inspection, "bias zero")), "bias.absent")
    own = head_rows(inspection)
    target = own if rows is None else rows
    if target is None:
        problem = f"{shown(inspection.checkpoint.source)} stores no head, so the length of the bias is unknown"
        refuse(problem, Hint("give ", option(rows=Hint("N"))), "bias.size")
    edits = Edits(inspection.checkpoint)
    for record in stored:
        _resize(edits, record, target, is_zero, again(inspection, "bias resize", rows=record.shape[-1]))
    notes: tuple[str, ...] = ()
    if own is not None and own != target:
        notes = (f"the head has {count(own, 'row')}, so a bias of {target:,} does not load with it",)
    return _plan("bias resize", inspection, edits, notes, {"rows": None if rows is None else str(rows)})


def head_rows(inspection: Inspection) -> int | None:
    """Return the rows of the head, or of the embedding if no head is stored; ``None`` if neither is stored."""
    for part in (inspection.head.output_head, inspection.head.input_embedding):
        if part is not None and part.shape:
            return part.shape[0]
    return None


def _resize(edits: Edits, record: TensorRecord, rows: int, is_zero: IsZero, hint: Hint) -> None:
    is_row = len(record.shape) == 2 and record.shape[0] == 1
    if (len(record.shape) != 1 and not is_row) or BITS.get(record.dtype, 1) % 8 or record.stride is not None:
        problem = f"{shown(record.name)} has shape {list(record.shape)} and dtype {shown(record.dtype)}"
        refuse(f"{problem}, but a head bias has one number for each row", "change the bias by hand", "bias.shape")
    before = record.shape[-1]
    if rows == before:
        return
    if rows < before and not is_zero(tail(record, rows)):
        problem = f"{shown(record.name)} has nonzero values from row {rows:,} on"
        refuse(f"{problem}: cutting it to {count(rows, 'row')} loses trained values", hint, "bias.nonzero")
    edits.resize(record, (*record.shape[:-1], rows))


def tail(record: TensorRecord, rows: int) -> TensorRecord:
    """Return the entries of a bias after the first ``rows`` as a separate record."""
    width = BITS[record.dtype] // 8
    span = ByteRange(record.range.file, record.range.start + rows * width, record.range.end)
    return TensorRecord(record.name, record.dtype, (record.shape[-1] - rows,), span)


def _plan(
    command: str, inspection: Inspection, edits: Edits, notes: Notes, options: dict[str, str | None] | None = None
) -> Plan:
    """Return the plan of ``edits``; the config and the ties do not change."""
    promises = kept_promises(inspection, still_stored(inspection.ties, edits), edits.after())
    return build(command, inspection, edits, None, promises, options=options or {}, notes=notes)
