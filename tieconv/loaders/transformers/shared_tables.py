"""Tables that a loader makes one whatever the flag says, and which of several stored ones it keeps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tieconv.checkpoint.family import Role
from tieconv.checkpoint.inspection import Inspection, Member, State, Tie

LAST_WINS = ("blenderbot", "led", "marian", "mt5", "pegasus", "pegasus_x", "t5", "umt5")
"""Types whose encoder and decoder are given one embedding module in transformers 4: of several stored tables the one
read last stays. Measured with 4.57.6, each table filled with a number of its own, in both orders."""

DECODER_IS_HEAD = ("fsmt",)
"""Types whose decoder's table is the head in transformers 4, whatever the flag says: files that it saved hold the head
alone, and of two the head stays. Measured with 4.48.3 and 4.57.6."""

_BY_ANY_NAME = frozenset(
    {"blenderbot", "blenderbot-small", "led", "marian", "mt5", "mvp", "pegasus", "pegasus_x", "t5", "umt5"}
)
"""Types whose shared table transformers 4.57 takes from the encoder's or the decoder's name as well: one module has all
three. Measured with 4.57.6, each name stored alone; the other types are left on the meta device, but for BART."""

_ALIKE = frozenset({State.CANONICAL, State.IDENTICAL, State.ALIASED})


def reads_half(model_type: str, stored: Iterable[str]) -> bool:
    """Whether transformers 4.57 fills an encoder-decoder's shared table from the names of its halves in ``stored``.

    BART looks at the decoder's, for the sake of bart-large-cnn (huggingface/transformers#36572).
    """
    halves = {half for name in stored for half in ("encoder", "decoder") if half in name.split(".")}
    return bool(halves) and (model_type in _BY_ANY_NAME or (model_type == "bart" and "decoder" in halves))


def twin(inspection: Inspection, tie: Tie, name: str) -> Member | None:
    """The stored head that the absent table ``name`` was when the model was saved; ``None`` for any other name."""
    head = inspection.head.output_head
    if inspection.family.text_type not in DECODER_IS_HEAD or name != tie.canonical or not head or not head.stored:
        return None
    return next((member for member in tie.members if member.name == head.name), None)


def one_table(inspection: Inspection) -> tuple[str, ...]:
    """The stored tables, not all equal, that transformers 4 makes one; empty where the order decides nothing."""
    head = inspection.head.output_head
    for tie in inspection.ties if inspection.family.text_type in LAST_WINS else ():
        stored = [member for member in tie.stored_members if head is None or member.name != head.name]
        if tie.role is Role.WORD_EMBEDDING and any(member.state not in _ALIKE for member in stored):
            return tuple(member.name for member in stored) if len(stored) > 1 else ()
    return ()


def last_read(inspection: Inspection, told: Sequence[str], names: Sequence[str]) -> int | None:
    """The place of the stored table, no head, that comes last in the files; ``told`` are its names in the table."""
    order = {name: place for place, name in enumerate(inspection.checkpoint.tensors)}
    held = [place for place, name in enumerate(names) if name in order and told[place] != inspection.family.output_head]
    return max(held, key=lambda place: order[names[place]], default=None)
