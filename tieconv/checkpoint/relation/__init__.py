"""The relation of one stored tensor to another: one frozen value type for each state, with its figures."""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar

from tieconv.checkpoint.value_type import record, stated_fields


# States of a name in a tied group, their common properties, and the states without figures.
#
# A tied model needs no other states. The states that a comparison proves are in `proved`, imported only if a
# comparison is made.
class State(StrEnum):
    """How the tensor of a tied name relates to the canonical one."""

    CANONICAL = "canonical"
    ABSENT = "absent"
    ALIASED = "aliased"
    IDENTICAL = "identical"
    TRANSPOSED = "transposed"
    CAST = "cast"
    SCALED = "scaled"
    NEAR = "near"
    DISTINCT = "distinct"
    UNREAD = "unread"


@record
class Evidence:
    """The base of all states. A state without figures inherits its methods and has no fields."""

    state: ClassVar[State]
    is_empty: ClassVar[bool] = False  # the tensor has no element, and the canonical one has some
    shape_differs: ClassVar[bool] = False  # and it is not the canonical tensor transposed

    @property
    def holds_nan(self) -> bool:
        """Whether equal values include a NaN, which compares unequal to itself."""
        return bool(getattr(self, "nan", False))

    @property
    def sign_of_zero_only(self) -> bool:
        """Whether +0 against -0 is the only difference."""
        return bool(getattr(getattr(self, "figures", None), "sign_of_zero_only", False))

    @property
    def is_lossless_cast(self) -> bool:
        """Whether the values are the same in another dtype, so that every dtype at loading makes them equal."""
        return False

    @property
    def is_row_prefix(self) -> bool:
        """Whether the tensor has fewer rows than the canonical one, and all are equal to its first rows."""
        return False

    @property
    def repeats_bytes(self) -> bool:
        """Whether the tensor's bytes are redundant beside the canonical tensor's."""
        return False

    def to_dict(self) -> dict[str, object]:
        """Return the object under ``detail``: each field except those at their default; figures by themselves."""
        stated = stated_fields(self)
        figures = stated.pop("figures", {})
        assert isinstance(figures, dict)
        return {**figures, **stated}


class Canonical(Evidence):
    """The stored tensor with which the other names are compared."""

    __slots__ = ()
    state = State.CANONICAL


class Absent(Evidence):
    """No tensor is stored under the name."""

    __slots__ = ()
    state = State.ABSENT


class Aliased(Evidence):
    """Another name for the canonical tensor's own bytes."""

    __slots__ = ()
    state = State.ALIASED
