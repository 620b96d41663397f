"""The last norm with the factors of a scaled head: exact, or fitted for the user to write."""

from __future__ import annotations

import numpy as np

from tieconv.analysis.model.last_norm import Final
from tieconv.analysis.model.subject import Subject
from tieconv.analysis.model.tables import Array
from tieconv.analysis.relation.related import Related
from tieconv.analysis.retie_cost.cost import one_shape
from tieconv.analysis.retie_cost.fold import fold_or_reason
from tieconv.checkpoint.json_values import stated_fields
from tieconv.checkpoint.results.analysis import Kinship
from tieconv.checkpoint.value_type import record
from tieconv.checkpoint.write_plan.plan import NormFold
from tieconv.execute.contents.mean import floats

Numbers = tuple[float, ...]


@record
class ExactFold:
    """The last norm as `retie --fold-norm` writes it.

    ``values`` are the norm's new weights: (d,), in the norm's own convention (1 + weight for Gemma).
    """

    rounded_elements: int
    tensor: str
    values: Numbers
    bias_tensor: str | None = None
    bias_values: Numbers | None = None

    def to_dict(self) -> dict[str, object]:
        """Return the object under ``fold``."""
        return {"exact": True, **stated_fields(self)}


@record
class FittedFold:
    """The last norm with fitted weights, which the user must write. ``reason`` says why no command does."""

    reason: str
    tensor: str
    values: Numbers
    bias_tensor: str | None = None
    bias_values: Numbers | None = None

    def to_dict(self) -> dict[str, object]:
        """Return the object under ``fold``."""
        return {"exact": False, **stated_fields(self)}


FoldedNorm = ExactFold | FittedFold


def folded_norm(subject: Subject, related: Related) -> FoldedNorm | None:
    """Return the last norm with the factors of the columns, or ``None`` if it cannot hold them.

    A shift that all rows share is dropped, because the softmax does not see it. Under a soft cap the result is
    ``None``.
    """
    fit, final = related.fit, subject.final
    if related.kind not in (Kinship.SCALAR, Kinship.DIAGONAL) or fit is None or not one_shape(subject):
        return None
    if subject.flip.third:
        return None
    if final is None or not final.norm:
        return None
    if final.capped and np.any(fit.shift):
        return None
    fold = fold_or_reason(subject)
    if isinstance(fold, NormFold):
        return _exactly(final, fold)
    values = final.gains * fit.gains - final.offset
    shift = None if final.shift is None else final.shift * fit.gains  # γ ⊙ x̂ + β: the factor is on both
    return FittedFold(fold, *_values(final, values, shift))


def _exactly(final: Final, fold: NormFold) -> ExactFold:
    values = floats(fold.values[final.norm], final.dtype)
    shift = floats(fold.values[final.shift_name], final.shift_dtype) if final.shift is not None else None
    return ExactFold(fold.rounded, *_values(final, values, shift))


def _values(final: Final, values: Array, shift: Array | None) -> tuple[str, Numbers, str | None, Numbers | None]:
    """Return the norm's weight and its values, and its bias and its values or ``None``."""
    if shift is None:
        return final.norm, _numbers(values), None, None
    return final.norm, _numbers(values), final.shift_name, _numbers(shift)


def _numbers(values: Array) -> Numbers:
    return tuple(float(value) for value in values)
