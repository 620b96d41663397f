"""The result of comparing two models: frozen dataclasses that serialise to `tieconv.diff/1`."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import ClassVar

from tieconv.checkpoint.quantised_matrix import PairRelation
from tieconv.checkpoint.relation.proved import Relation
from tieconv.checkpoint.value_type import Listed, Printed, plain, quoted, record, values_of
from tieconv.text import count
from tieconv.version import VERSION


class Contrast(StrEnum):
    """The kind of a difference between two models."""

    ONLY_A = "only_a"
    ONLY_B = "only_b"
    SHAPE = "shape"
    TRANSPOSED = "transposed"
    CAST = "cast"
    SCALED = "scaled"
    NEAR = "near"
    DISTINCT = "distinct"


class Weight(StrEnum):
    """What a difference of the config means for the function."""

    COSMETIC = "cosmetic"  # no loader computes anything else because of it
    TENSORS = "tensors"  # the tie flag and related keys: the tensors that result decide
    FUNCTION = "function"  # the models may compute something else


@record
class Side(Listed):
    """One of the two models."""

    source: str
    format: str
    architecture: str
    tensors: int
    bytes_stored: int


@record
class OnlyHere(Listed):
    """A tensor that only one of the models stores."""

    shape: tuple[int, ...]
    dtype: str


@record
class Shapes(Listed):
    """The two shapes of tensors whose shapes differ."""

    a: tuple[int, ...]
    b: tuple[int, ...]


@record
class ForwardScale(Listed):
    """Equal bytes, but the forward pass of one model multiplies the logits by ``forward_factor``."""

    forward_factor: float
    reason: str = "equal bytes, but one forward pass scales the logits"


@record
class Values:
    """How B's tensor relates to A's; ``forward_factor`` if A's forward pass multiplies its logits and B's does not."""

    relation: Relation
    forward_factor: float | None = None

    def to_dict(self) -> dict[str, object]:
        """Return the object under ``detail``."""
        factor = {} if self.forward_factor is None else {"forward_factor": plain(self.forward_factor)}
        return {**self.relation.to_dict(), **factor}


@record
class TensorDifference(Listed):
    """A parameter that differs between the models.

    ``a`` and ``b`` are the names of its stored tensors in the files (``None``: not stored). ``loaders`` are those that
    see the difference.
    """

    KEYS: ClassVar = {"contrast": "state", "evidence": "detail"}

    name: str
    a: str | None
    b: str | None
    contrast: Contrast
    loaders: tuple[str, ...]
    evidence: OnlyHere | Shapes | ForwardScale | Values


@record
class ConfigDifference:
    """A value of config.json that differs between the models; ``None`` if it is absent and ``in_*`` false."""

    path: str
    a: object
    b: object
    in_a: bool
    in_b: bool
    weight: Weight


@record
class FileDifference(Listed):
    """Another file of the directories that differs: ``only_a``, ``only_b`` or ``distinct``."""

    KEYS: ClassVar = {"contrast": "state"}

    name: str
    contrast: Contrast


@record
class Comparison(Printed):
    """Two models, compared. ``str()`` returns the `tieconv.diff/1` JSON.

    ``same_function`` is true only if it follows from the bytes. Every parameter of every loader is then equal, and no
    config value differs that may change the computation. ``reasons`` say what prevents this conclusion. ``matrices``
    are the quantised tables with parts among the ``tensors``.
    """

    a: Side
    b: Side
    same_function: bool
    reasons: tuple[str, ...]
    equal: int
    tensors: tuple[TensorDifference, ...]
    config: tuple[ConfigDifference, ...]
    files: tuple[FileDifference, ...]
    bytes_compared: int
    notes: tuple[str, ...] = ()
    matrices: tuple[MatrixDifference, ...] = ()

    def _facts(self) -> tuple[str, ...]:
        answer = "same function" if self.same_function else "not proved the same function"
        differ = f"{count(len(self.tensors), 'tensor')} {'differs' if len(self.tensors) == 1 else 'differ'}"
        return quoted(self.a.source), quoted(self.b.source), answer, differ

    def _rows(self) -> Iterator[tuple[str, ...]]:
        for entry in self.tensors:
            yield "tensor", entry.name, str(entry.contrast)
        for value in self.config:
            yield "config", value.path, str(value.weight)
        for file in self.files:
            yield "file", file.name, str(file.contrast)

    def to_dict(self) -> dict[str, object]:
        """Return the document of schema `tieconv.diff/1`."""
        return {
            "schema": "tieconv.diff/1",
            "tieconv": VERSION,
            "a": self.a.to_dict() | {"architecture": self.a.architecture or None},
            "b": self.b.to_dict() | {"architecture": self.b.architecture or None},
            **values_of(self, "same_function reasons"),
            "tensors": values_of(self, "equal different=tensors bytes_compared"),
            "config": [_config(entry) for entry in self.config],
            **values_of(self, f"files notes {'quantised=matrices' if self.matrices else ''}"),
        }


def _config(difference: ConfigDifference) -> dict[str, object]:
    document: dict[str, object] = {"path": difference.path, "judgement": str(difference.weight)}
    if difference.in_a:
        document["a"] = plain(difference.a)
    if difference.in_b:
        document["b"] = plain(difference.b)
    return document


# A quantised embedding or head that differs between two models, as one matrix.
@record
class MatrixSide(Listed):
    """A quantised matrix by its scheme, or a float matrix by its type. ``shape`` is [V, H] if it is known."""

    scheme: str
    bits: int | None
    shape: tuple[int, int] | None


@record
class MatrixDifference(Listed):
    """An embedding or head that is quantised in a model, and of which stored ``parts`` differ.

    ``relation`` is how B's matrix relates to A's; ``None`` if only one model stores it.
    """

    name: str
    a: MatrixSide | None
    b: MatrixSide | None
    parts: tuple[str, ...]
    relation: PairRelation | None
