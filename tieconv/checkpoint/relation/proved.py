"""States that comparing two tensors proves, with their figures. A field at its default is not printed.

``transposed`` on a head of an ONNX graph means that the comparison used its transpose.
"""

from __future__ import annotations

from tieconv.checkpoint.relation import Absent, Aliased, Canonical, Evidence, State
from tieconv.checkpoint.value_type import Listed, plain, record

Ranges = tuple[tuple[int, int], ...]
"""Half-open ranges, in ascending order: (first, last + 1)."""


@record
class Identical(Evidence):
    """The same type, shape and bytes; ``by`` is what proved it if no byte was compared."""

    state = State.IDENTICAL

    by: str = ""
    nan: bool = False

    @property
    def repeats_bytes(self) -> bool:
        return True


@record
class Transposed(Evidence):
    """The transpose of the canonical tensor; a ``view`` is a transpose of the canonical tensor's own bytes."""

    state = State.TRANSPOSED

    view: bool = False
    transposed: bool = False
    nan: bool = False

    @property
    def repeats_bytes(self) -> bool:
        return not self.view


@record
class Cast(Evidence):
    """One tensor is the other one rounded to a narrower type.

    ``exact`` is the name of the tensor with full precision, ``narrow`` that of the rounded one. ``lossless`` is true if
    widening the rounded tensor restores the exact one.
    """

    state = State.CAST

    exact: str
    narrow: str
    lossless: bool
    transposed: bool = False
    nan: bool = False

    @property
    def is_lossless_cast(self) -> bool:
        return self.lossless and not (self.transposed or self.nan)


@record
class Scaled(Evidence):
    """The tensor is the canonical one times ``factor``, to within ``max_ulp`` representable values of its type.

    ``exact`` is true if the canonical tensor alone restores it. ``rounded`` is the name of the tensor that was computed
    from the other.
    """

    state = State.SCALED

    factor: float
    exact: bool
    power_of_two: bool
    max_ulp: int
    rounded: str
    transposed: bool = False


@record
class RowFigures(Listed):
    """By how much two float tensors of one shape differ, row by row of the first dimension.

    ``max_ulp`` is in representable values of their type, ``max_abs`` in the tensors' own unit. ``relative_rms`` =
    rms(difference) / rms(canonical). ``None`` if a figure is undefined or not finite. ``row_ranges`` lists the first
    ranges of differing rows.
    """

    rows_differing: int
    rows: int
    row_ranges: Ranges
    rows_listed_completely: bool
    max_ulp: int | None
    max_abs: float | None
    relative_rms: float | None
    sign_of_zero_only: bool
    nan_rows: int


@record
class Near(Evidence):
    """Few rows differ, or every row differs by little."""

    state = State.NEAR

    figures: RowFigures
    transposed: bool = False


@record
class Different(Evidence):
    """Float tensors of one shape with other values; ``cosine`` of the angle between them, ``None`` if undefined."""

    state = State.DISTINCT

    figures: RowFigures
    cosine: float | None
    transposed: bool = False


@record
class Empty(Evidence):
    """A tensor without elements, beside a canonical one that has some."""

    state = State.DISTINCT
    is_empty = True

    transposed: bool = False

    def to_dict(self) -> dict[str, object]:
        return {"empty": True, **Evidence.to_dict(self)}


@record
class OtherShape(Evidence):
    """A tensor of another shape.

    For stacks of rows of one type, ``rows_equal`` counts the equal first rows. ``extra_rows`` is how many more rows
    (negative: fewer) it has than the canonical tensor.
    """

    state = State.DISTINCT
    shape_differs = True

    shape: tuple[int, ...]
    canonical_shape: tuple[int, ...]
    rows_equal: int | None = None
    extra_rows: int | None = None
    transposed: bool = False

    @property
    def is_row_prefix(self) -> bool:
        return bool(self.shape) and self.rows_equal == self.shape[0] and not self.transposed


@record
class OtherBytes(Evidence):
    """Bytes that differ and that are not compared as numbers, because of ``reason``."""

    state = State.DISTINCT

    reason: str
    transposed: bool = False


@record
class OtherSample(Evidence):
    """A sample of the bytes differs: ``ranges_differing`` are ranges of bytes of the tensor."""

    state = State.DISTINCT

    ranges_differing: Ranges

    def to_dict(self) -> dict[str, object]:
        return {"sampled": True, "ranges_differing": plain(self.ranges_differing)}


NO_NUMPY = "numpy is not installed"
TYPES_NEED_NUMPY = "the types differ, and tieconv compares such values only with numpy"
"""Why quantised values, and values of two types, are unread without numpy."""


@record
class Unread(Evidence):
    """Nothing is proved, because of ``reason``; ``sampled`` if ``ranges_equal`` (of bytes) were compared."""

    state = State.UNREAD

    sampled: bool = False
    ranges_equal: Ranges = ()
    transposed: bool = False
    reason: str = ""


Compared = (
    Aliased | Identical | Transposed | Cast | Scaled | Near | Different | Empty | OtherShape | OtherBytes
)  # the states that comparing every byte proves
Relation = Canonical | Absent | Compared | OtherSample | Unread
