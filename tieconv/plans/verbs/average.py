"""Re-tying to the mean: one table whose elements are the means of those of two."""

from __future__ import annotations

from tieconv.checkpoint.files.weight_file import TensorRecord
from tieconv.checkpoint.finding import REVIEW_FIRST
from tieconv.checkpoint.inspection import Inspection, State
from tieconv.checkpoint.phrases import is_apart
from tieconv.checkpoint.tie_group import Member, Tie
from tieconv.plans.edits import Edits
from tieconv.plans.guards import again, refuse
from tieconv.plans.meaning import Note
from tieconv.text import shown

_ALIKE = frozenset({State.NEAR, State.DISTINCT})
"""States in which a mean may mean something: one is no transpose, multiple or cast of the other."""


def merge(
    edits: Edits, inspection: Inspection, tie: Tie, reference: Member, differing: list[Member]
) -> tuple[Note, ...]:
    """Store the mean of the input embedding and the head under the canonical name; the note says what is lost.

    Raises `RefusedError` where a mean is doubtful: more than two tables that differ, two types, a multiple, a strided
    view. Whether the elements are finite shows when they are read.
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
    text = f"{lost} become their mean ({is_apart(differing[0])}) {REVIEW_FIRST}"
    return (Note(text, (first.name, second.name)),)


def _guard_pair(inspection: Inspection, tie: Tie, reference: Member, differing: list[Member]) -> None:
    """One end differs, and the other is the reference or, like an encoder's own table, equal to it."""
    view = inspection.head
    ends = {part.name for part in (view.input_embedding, view.output_head) if part}
    equal = {member.name for member in tie.members} - {differing[0].name}
    if len(differing) == 1 and len(ends & equal) == 1 and differing[0].name in ends:
        return
    names = ", ".join(shown(member.name) for member in (reference, *differing))
    refuse(
        f"{names} differ, and a mean is that of one input embedding and one head",
        f"choose whose values survive: {_command(inspection)} --from embed|head --force",
        "mean.pair",
    )


def _guard_records(inspection: Inspection, first: TensorRecord, second: TensorRecord, differing: Member) -> None:
    names = f"{shown(first.name)} and {shown(second.name)}"
    one_of_them = f"choose whose values survive: {_command(inspection)} --from embed|head --force"
    if first.dtype != second.dtype:
        refuse(
            f"{names} are {shown(first.dtype)} and {shown(second.dtype)}: which the mean should have is not said",
            one_of_them,
            "mean.dtype",
        )
    if differing.state not in _ALIKE:
        refuse(f"{names} have no sensible mean: {is_apart(differing)}", one_of_them, "mean.state")
    if first.stride is not None or second.stride is not None:
        refuse(
            f"{names} are not both stored row after row",
            f"store them so first: {again(inspection, 'convert', '-o OUT --to safetensors')}",
            "mean.stride",
        )


def _command(inspection: Inspection) -> str:
    return again(inspection, "retie")
