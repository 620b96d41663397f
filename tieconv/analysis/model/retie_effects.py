"""The other effects of a re-tie: on the factor of the logits, and on further tensors that the class ties."""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.analysis.model.tables import Table
from tieconv.checkpoint.family import Role
from tieconv.checkpoint.files.interface import ByteReader
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.relation.proved import Scaled
from tieconv.checkpoint.tie_group import Tie
from tieconv.checkpoint.value_type import record
from tieconv.checkpoint.write_plan.retie_forecast import RetieForecast
from tieconv.inspection.equality.relation import relate
from tieconv.inspection.ties import EQUAL
from tieconv.text import shown


@record
class Flip:
    """The other effects of a re-tie on two tables.

    If tied, the class multiplies its logits by 2**``exponent`` (as T5 does). ``taken_up`` says that the head is exactly
    the embedding times that factor, so a re-tie changes nothing. ``refused`` says why no re-tie is possible with any
    values; it is empty if one is. ``third`` names another tensor that the class ties to the embedding, such as a
    decoder's table, if it differs. A re-tie would replace it too.
    """

    exponent: int = 0
    taken_up: bool = False
    refused: str = ""
    third: str = ""

    @property
    def barred(self) -> bool:
        """Whether tying would do more than replace one table by the other."""
        return bool(self.refused) or (self.exponent != 0 and not self.taken_up)

    @property
    def reason(self) -> str:
        """Why it is barred, as a clause."""
        if self.refused:
            return self.refused
        return f"if tied, this class multiplies its logits by 2**{self.exponent}, which it does not do now"


PLAIN = Flip()
"""A re-tie without other effects."""


def flip_of(evidence: Inspection, reader: ByteReader, embed: Table, head: Table, forecast: RetieForecast) -> Flip:
    """Return the other effects. Reads both tables if the class rescales its logits, and the other tied tensors."""
    if forecast.refused:
        return Flip(refused=forecast.refused)
    exponent = forecast.exponent
    word = [tie for tie in evidence.ties if tie.role is Role.WORD_EMBEDDING]
    others = [tie for tie in evidence.ties if tie.gated and tie not in word]
    for name, reference in (pair for tie in others for pair in _apart(evidence, reader, tie)):
        return Flip(exponent, refused=f"{shown(name)} differs from {shown(reference)}, and a re-tie would merge them")
    third = next((name for tie in word for name, _ in _apart(evidence, reader, tie, embed, head)), "")
    if not exponent:
        return Flip(third=third)
    if third:
        return Flip(exponent, refused=f"{shown(third)} differs from {shown(embed.record.name)}", third=third)
    relation = relate(reader, embed.record, head.record)
    alike = embed.record.dtype == head.record.dtype  # a multiple of another type was rounded
    return Flip(
        exponent, alike and isinstance(relation, Scaled) and relation.exact and relation.factor == 2.0**exponent
    )


def _apart(evidence: Inspection, reader: ByteReader, tie: Tie, *ends: Table) -> Iterator[tuple[str, str]]:
    """Yield (name, name of the reference) for each stored member of a group that differs from the reference.

    The reference is the first of ``ends``, or else the first stored member. ``ends`` are compared elsewhere.
    """
    tensors = evidence.checkpoint.tensors
    against = ends[0].record if ends else tensors[tie.stored_members[0].name]
    left_out = {against.name, *(end.record.name for end in ends)}
    for member in tie.stored_members:
        record = tensors[member.name]
        if record.name not in left_out and record.elements and relate(reader, against, record).state not in EQUAL:
            yield record.name, against.name
