"""Tied groups and duplicates: which names are one parameter, and what the files store for them."""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar

from tieconv.checkpoint.family import Role
from tieconv.checkpoint.relation import State as State
from tieconv.checkpoint.relation.proved import Relation
from tieconv.checkpoint.value_type import Listed, record, values_of


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
        loads_as = "" if self.loads_as is None else "loads_as"
        return values_of(self, f"name stored state detail=relation {loads_as}")


@record
class Tie(Listed):
    """Names that the architecture makes one parameter.

    ``declared`` is whether the config makes this group tied. ``consistent`` is whether the stored tensors agree with
    that, ``None`` if a needed comparison was not made. ``canonical`` is the name that is, or should be, stored.
    """

    KEYS: ClassVar = {"canonical_stored": None, "gated": None}

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


@record
class Duplicate(Listed):
    """Tensors outside the tied groups that hold the same values; ``kind`` is a `State` value."""

    kind: State
    tensors: tuple[str, ...]
    bytes_wasted: int


# The input embedding, the output embedding and the bias of a model, by their names in the file.
class BiasState(StrEnum):
    """The content of a head bias."""

    ABSENT = "absent"
    ZERO = "zero"
    NONZERO = "nonzero"
    UNREAD = "unread"


@record
class TensorView:
    """A tensor that is part of the input or output embedding."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@record
class OutputHead:
    """The output embedding: stored, absent because it is tied (``tied_to``), or missing."""

    name: str
    stored: bool
    tied_to: str | None
    shape: tuple[int, ...] | None = None
    dtype: str | None = None


@record
class OutputBias:
    """The head's bias: the name that a loader reads, or would read."""

    name: str
    state: BiasState
    max_abs: float | None = None


@record
class Head:
    """Input embedding, output embedding and bias, by their names in the file."""

    input_embedding: TensorView | None
    output_head: OutputHead | None
    output_bias: OutputBias | None
    embedding_pieces: tuple[TensorView, ...] = ()  # the stored tensors whose rows together are the input embedding

    def to_dict(self) -> dict[str, object]:
        """Return the object under ``head``."""
        return values_of(self, "input_embedding embedding_pieces output_head output_bias")
