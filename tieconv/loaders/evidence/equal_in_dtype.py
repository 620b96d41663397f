"""Say whether two stored tensors are equal once a loader has cast both to one dtype."""

from __future__ import annotations

from typing import assert_never

from tieconv.checkpoint.inspection import Inspection, State
from tieconv.checkpoint.relation.interface import Absent, Aliased, Canonical
from tieconv.checkpoint.relation.proved import (
    Cast,
    Different,
    Empty,
    Identical,
    Near,
    OtherBytes,
    OtherSample,
    OtherShape,
    RowFigures,
    Scaled,
    Transposed,
    Unread,
)
from tieconv.checkpoint.tie_group import Member

_COARSER = {"F16": 1 << 13, "BF16": 1 << 16}
"""float32 steps in one step of a narrower type: copies with a larger difference stay different after rounding."""


def equal_members(inspection: Inspection, first: Member, second: Member, dtype: str | None) -> bool | None:
    """Return whether two members of one group are equal in ``dtype``, ``None`` if their comparison does not decide.

    ``dtype`` is the name in a safetensors header (``"BF16"``), or ``None`` if it is unknown.
    """
    if State.CANONICAL not in (first.state, second.state):
        equal = [_as_reference(inspection, member, dtype) for member in (first, second)]
        if None in equal or not any(equal):
            return None
        return all(equal)
    return _as_reference(inspection, second if first.state is State.CANONICAL else first, dtype)


def _as_reference(inspection: Inspection, member: Member, dtype: str | None) -> bool | None:
    """Return whether a stored member equals the group's reference by value; ``None`` if that is not decided."""
    match member.relation:
        case Canonical() | Aliased() | Identical():
            return not member.relation.holds_nan
        case Cast(lossless=True):
            return True
        case Cast(narrow=narrow) if dtype is not None:
            return dtype == inspection.checkpoint.tensors[narrow].dtype
        case Unread() | Cast():
            return None
        case Near(figures=figures) | Different(figures=figures) if figures.sign_of_zero_only:
            return True
        case Near(figures=figures):
            return None if _may_round_to_equal(inspection, member, figures, dtype) else False
        case Absent() | Transposed() | Scaled() | Different() | Empty() | OtherShape() | OtherBytes() | OtherSample():
            return False
        case _:
            assert_never(member.relation)


def _may_round_to_equal(inspection: Inspection, member: Member, figures: RowFigures, dtype: str | None) -> bool:
    if inspection.checkpoint.tensors[member.name].dtype != "F32" or dtype not in _COARSER:
        return False
    return figures.max_ulp is None or figures.max_ulp < _COARSER[dtype]
