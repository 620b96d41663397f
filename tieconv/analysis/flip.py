"""What setting the flag does to the forward pass, besides that both ends read one table."""

from __future__ import annotations

from dataclasses import dataclass

from tieconv.analysis.tables import Table
from tieconv.checkpoint.inspection import Inspection, State
from tieconv.checkpoint.records import ByteReader
from tieconv.errors import RefusedError
from tieconv.inspection.relation import relate
from tieconv.plans import tied_exponent
from tieconv.text import shown


@dataclass(frozen=True, slots=True)
class Flip:
    """``exponent``: once tied, the class multiplies its logits by 2**exponent (T5 and its kin). ``taken_up`` where the
    head is the embedding times that number, element by element, so that a re-tie changes nothing. ``refused`` says why
    no re-tie goes ahead whatever the tables hold; it is empty where one may.
    """

    exponent: int = 0
    taken_up: bool = False
    refused: str = ""

    @property
    def barred(self) -> bool:
        """Whether tying would do more than replace one table by the other."""
        return bool(self.refused) or (self.exponent != 0 and not self.taken_up)

    @property
    def reason(self) -> str:
        """Why it is barred: half a sentence."""
        if self.refused:
            return self.refused
        return f"once tied, this class multiplies its logits by 2**{self.exponent}, not as it does now"


PLAIN = Flip()
"""The two tables become one, and that is all."""


def flip_of(evidence: Inspection, reader: ByteReader, embed: Table, head: Table) -> Flip:
    """For two tables. Reads both where the class rescales its logits, else nothing."""
    try:
        exponent = tied_exponent(evidence)
    except RefusedError as error:
        return Flip(refused=error.message.removeprefix(f"{shown(evidence.checkpoint.source)}: "))
    if not exponent:
        return PLAIN
    found = relate(reader, embed.record, head.record)
    exact = found.state is State.SCALED and found.detail.get("exact") is True
    return Flip(exponent, exact and found.detail.get("factor") == 2.0**exponent)
