"""Tied groups and duplicates: which names are one parameter, and what the files store for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tieconv.checkpoint.family import Role
from tieconv.checkpoint.relation.interface import State as State
from tieconv.checkpoint.value_type import record

if TYPE_CHECKING:
    from tieconv.checkpoint.relation.proved import Relation


@record
class Member:
    """One name of a tied group; ``loads_as`` is the loader's name for it, if another."""

    name: str
    stored: bool
    relation: Relation
    loads_as: str | None = None

    @property
    def state(self) -> State:
        return self.relation.state

    def to_dict(self) -> dict[str, object]:
        """Return one entry of a group's ``members``."""
        return {
            "name": self.name,
            "stored": self.stored,
            "state": str(self.state),
            "detail": self.relation.to_dict(),
            **({} if self.loads_as is None else {"loads_as": self.loads_as}),
        }


@record
class Tie:
    """Names that the architecture makes one parameter.

    ``declared`` is whether the config makes this group tied. ``consistent`` is whether the stored tensors agree with
    that, ``None`` if a needed comparison was not made. ``canonical`` is the name that is, or should be, stored.
    """

    role: Role
    canonical: str
    canonical_stored: bool
    declared: bool
    consistent: bool | None
    gated: bool
    bytes_wasted: int
    members: tuple[Member, ...]

    @property
    def stored_members(self) -> tuple[Member, ...]:
        return tuple(member for member in self.members if member.stored)

    def to_dict(self) -> dict[str, object]:
        """Return one entry of ``ties``."""
        return {
            "role": str(self.role),
            "canonical": self.canonical,
            "declared": self.declared,
            "consistent": self.consistent,
            "bytes_wasted": self.bytes_wasted,
            "members": [member.to_dict() for member in self.members],
        }


@record
class Duplicate:
    """Tensors outside the tied groups that hold the same values; ``kind`` is a `State` value."""

    kind: State
    tensors: tuple[str, ...]
    bytes_wasted: int

    def to_dict(self) -> dict[str, object]:
        """Return one entry of ``duplicates``."""
        return {"kind": str(self.kind), "tensors": list(self.tensors), "bytes_wasted": self.bytes_wasted}
