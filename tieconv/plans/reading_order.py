"""What loaders take from the order in which a model's tensors are stored, which a conversion changes."""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.dtypes import FLOATS
from tieconv.checkpoint.family import Role
from tieconv.checkpoint.inspection import Inspection, State, Tie
from tieconv.text import shown

_LAST_WINS = ("blenderbot", "led", "marian", "mt5", "pegasus", "pegasus_x", "t5", "umt5")
"""Types whose encoder and decoder are given one embedding module in transformers 4: of several stored tables the one
read last stays. Measured with 4.57.6, each table filled with a number of its own, in both orders."""

_ALIKE = frozenset({State.CANONICAL, State.IDENTICAL, State.ALIASED})


def order_notes(inspection: Inspection) -> Iterator[str]:
    """Where another order may be another model."""
    yield from _types(inspection)
    if inspection.family.model_type in _LAST_WINS:
        for tie in inspection.ties:
            yield from _tables(inspection, tie)


def _types(inspection: Inspection) -> Iterator[str]:
    """`dtype="auto"`, the default of transformers 5, is that of the first tensor where the config names none."""
    config = inspection.checkpoint.config_values
    found = sorted({record.dtype for record in inspection.checkpoint.tensors.values()} & set(FLOATS))
    if len(found) > 1 and config and not (config.get("dtype") or config.get("torch_dtype")):
        yield (
            f"the config names no dtype and the tensors are of {', '.join(found)}: transformers 5 loads all of them in "
            "the type of the first one that it reads, which may be another one now: write dtype into config.json"
        )


def _tables(inspection: Inspection, tie: Tie) -> Iterator[str]:
    head = inspection.head.output_head
    stored = [member for member in tie.stored_members if head is None or member.name != head.name]
    differing = [member.name for member in stored if member.state not in _ALIKE]
    if tie.role is Role.WORD_EMBEDDING and len(stored) > 1 and differing:
        names = ", ".join(shown(member.name) for member in stored)
        yield (
            f"not function-preserving in transformers 4, which makes one table of {names} and keeps the one "
            "that it reads last: they differ, and their order may be another one now"
        )
