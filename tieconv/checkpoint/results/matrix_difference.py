"""A quantised embedding or head that differs between two models, as one matrix."""

from __future__ import annotations

from tieconv.checkpoint.quantised_matrix import PairRelation
from tieconv.checkpoint.value_type import record


@record
class MatrixSide:
    """A quantised matrix by its scheme, or a float matrix by its type. ``shape`` is [V, H] if it is known."""

    scheme: str
    bits: int | None
    shape: tuple[int, int] | None

    def to_dict(self) -> dict[str, object]:
        """Return the object under ``a`` or ``b``."""
        return {"scheme": self.scheme, "bits": self.bits, "shape": list(self.shape) if self.shape else None}


@record
class MatrixDifference:
    """An embedding or head that is quantised in a model, and of which stored ``parts`` differ.

    ``relation`` is how B's matrix relates to A's; ``None`` if only one model stores it.
    """

    name: str
    a: MatrixSide | None
    b: MatrixSide | None
    parts: tuple[str, ...]
    relation: PairRelation | None

    def to_dict(self) -> dict[str, object]:
        """Return one entry of ``quantised``."""
        return {
            "name": self.name,
            "a": self.a.to_dict() if self.a else None,
            "b": self.b.to_dict() if self.b else None,
            "parts": list(self.parts),
            "relation": self.relation.to_dict() if self.relation else None,
        }
