"""Re-tie a head that contains a folded norm: move its factors into the norm, then drop the head."""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.finding import REVIEW_FIRST
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.tie_group import Member, Tie
from tieconv.checkpoint.write_plan import NormFold
from tieconv.loaders.load import load, releases
from tieconv.plans.edits import Edits
from tieconv.plans.guards import inspect_hint, refuse
from tieconv.plans.meaning import Note
from tieconv.text import shown


def merge(
    edits: Edits, inspection: Inspection, tie: Tie, reference: Member, differing: list[Member], fold: NormFold
) -> tuple[Note, ...]:
    """Drop the head and change the norm; return notes that count the rounded elements of the stored head.

    Raises `RefusedError` if another tensor of the group differs too.
    """
    if [member.name for member in differing] != [fold.head]:
        names = ", ".join(shown(member.name) for member in differing)
        refuse(
            f"{names} differ from {shown(reference.name)}, but only a head can contain a folded norm",
            inspect_hint(inspection),
            "fold.group",
        )
    tensors = inspection.checkpoint.tensors
    norms = " and ".join(map(shown, fold.values))
    for name, data in fold.values.items():
        edits.give(tensors[name], data, f"its values times the column factors of {fold.head}, exact")
    for member in tie.members:
        if not member.stored or member.name in (tie.canonical, reference.name):
            continue
        if member.name == fold.head:
            edits.drop(member.name, _because(member, tie, fold))
        else:
            edits.drop_equal(member.name, reference.name, _because(member, tie, fold))
    if reference.name != tie.canonical:
        edits.rename(reference.name, tie.canonical)
    tensors_changed = (fold.head, *fold.values)
    return (Note(_note(fold, norms), tensors_changed), *_passed_over(inspection, fold))


def _because(member: Member, tie: Tie, fold: NormFold) -> str:
    if member.name != fold.head:
        return f"equal to {tie.canonical}, byte for byte"
    return f"{tie.canonical} times the factors moved into {' and '.join(fold.values)}, byte for byte"


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
