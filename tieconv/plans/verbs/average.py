"""Re-tie to the mean: replace two tables by one table with the mean of each pair of elements."""

from __future__ import annotations

from tieconv.checkpoint.finding import REVIEW_FIRST
from tieconv.checkpoint.inspection import Inspection, State
from tieconv.checkpoint.phrases import difference_clause
from tieconv.checkpoint.tie_group import Member, Tie
from tieconv.checkpoint.weight_file import TensorRecord
from tieconv.plans.edits import Edits
from tieconv.plans.guards import again, refuse
from tieconv.plans.meaning import Note
from tieconv.text import shown

_ALIKE = frozenset({State.NEAR, State.DISTINCT})
"""States that allow a mean: neither table is a transpose, multiple or cast of the other."""


def merge(
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
    refuse(
        f"{names} differ, but retie averages only one input embedding and one head",
        f"choose the values to keep: {_command(inspection)} --from embed|head --force",
        "mean.pair",
    )


def _guard_records(inspection: Inspection, first: TensorRecord, second: TensorRecord, differing: Member) -> None:
    names = f"{shown(first.name)} and {shown(second.name)}"
    one_of_them = f"choose the values to keep: {_command(inspection)} --from embed|head --force"
    if first.dtype != second.dtype:
        refuse(
            f"{names} are {shown(first.dtype)} and {shown(second.dtype)}: the dtype of their mean is not clear",
            one_of_them,
            "mean.dtype",
        )
    if differing.state not in _ALIKE:
        clause = difference_clause(differing)
        why = f"{shown(differing.name)}{clause.removeprefix('it')}" if clause.startswith("it ") else clause
        refuse(f"{names} have no useful mean: {why}", one_of_them, "mean.state")
    if first.stride is not None or second.stride is not None:
        refuse(
            f"{names} are not both stored as contiguous rows",
            f"write contiguous tensors first: {again(inspection, 'convert', '-o OUT --to safetensors')}",
            "mean.stride",
        )


def _command(inspection: Inspection) -> str:
    return again(inspection, "retie")
