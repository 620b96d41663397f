"""The tables of tied groups: for each state and declaration, the rule that reports it.

`docs/generate.py` writes the documentation from these tables. A test checks every cell on a checkpoint.
"""

from __future__ import annotations

from tieconv.checkpoint.family import Role
from tieconv.checkpoint.inspection import State
from tieconv.checkpoint.value_type import record


@record
class Column:
    """One way to declare a tie: the flag (``None``: absent), and whether the class then ties."""

    title: str
    flag: bool | None
    tied: bool


@record
class Row:
    """One state: what the file holds, the rule for a tied group, and the rule for an untied one."""

    state: State
    holds: str
    tied: str | None
    untied: str | None

    def rule(self, column: Column) -> str | None:
        """Return the code of the rule that reports this state; ``None`` if the state is consistent."""
        return self.tied if column.tied else self.untied

    def decides(self, column: Column) -> bool:
        """Return whether tieconv read enough to decide: only a tied group needs the comparison."""
        return self.state is not State.UNREAD or not column.tied


@record
class Table:
    """All states of one kind of group."""

    role: Role
    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]


TIED = Column("declared tied", True, True)
UNTIED = Column("declared untied", False, False)
DEFAULT_TIED = Column("flag absent, tied by default", None, True)
DEFAULT_UNTIED = Column("flag absent, untied by default", None, False)

WORD_EMBEDDING = Table(
    Role.WORD_EMBEDDING,
    "The output head and the input embedding",
    (TIED, UNTIED, DEFAULT_TIED, DEFAULT_UNTIED),
    (
        Row(State.CANONICAL, "the head alone, without the embedding", "TIE005", "TIE011"),
        Row(State.ABSENT, "the embedding alone", None, "TIE003"),
        Row(State.ALIASED, "both names, one storage (not in safetensors)", None, None),
        Row(State.IDENTICAL, "both, equal byte for byte", "TIE002", "TIE004"),
        Row(State.TRANSPOSED, "both, the head with rows and columns swapped", "TIE010", "TIE010"),
        Row(State.CAST, "both, equal after rounding to the narrower dtype", "TIE001", None),
        Row(State.SCALED, "both, the head a multiple of the embedding", "TIE001", None),
        Row(State.NEAR, "both, most rows equal or all values close", "TIE001", None),
        Row(State.DISTINCT, "both, different", "TIE001", None),
        Row(State.UNREAD, "both, not compared (`--depth header`)", None, None),
    ),
)

OUTPUT_BIAS = Table(
    Role.OUTPUT_BIAS,
    "The two names of a head bias",
    (TIED, UNTIED, DEFAULT_TIED),
    (
        Row(State.CANONICAL, "the inner name alone", "TIE005", "BIA002"),
        Row(State.ABSENT, "the outer name alone", None, "BIA002"),
        Row(State.ALIASED, "both names, one storage (not in safetensors)", None, None),
        Row(State.IDENTICAL, "both, equal byte for byte", None, None),
        Row(State.CAST, "both, equal after rounding to the narrower dtype", "BIA003", "BIA003"),
        Row(State.SCALED, "both, one a multiple of the other", "BIA003", "BIA003"),
        Row(State.NEAR, "both, most values equal or all close", "BIA003", "BIA003"),
        Row(State.DISTINCT, "both, different", "BIA003", "BIA003"),
        Row(State.UNREAD, "both, not compared (`--depth header`)", None, None),
    ),
)
