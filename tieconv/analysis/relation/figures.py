"""The figures of each class of relation: one record for each, with its JSON under a section's ``detail``.

``rows`` are the rows that both tables have, and ``rows_differing`` those of them that differ.
"""

from __future__ import annotations

from tieconv.checkpoint.results.analysis import Detail
from tieconv.checkpoint.value_type import record


@record
class NoFigures(Detail):
    """A class without figures."""


@record
class RowsEqual(Detail):
    """No row differs, bit by bit or after the wider type is rounded to ``cast``."""

    rows_differing: int
    rows: int
    cast: str


@record
class OnceRounded(Detail):
    """Both tables have the type ``stored``, and one is the other rounded to ``cast``."""

    rows_differing: int
    rows: int
    cast: str
    stored: str


@record
class RowsAppended(Detail):
    """The common rows are equal, and the head has ``extra_rows`` more rows (negative: fewer)."""

    rows_differing: int
    rows: int
    cast: str
    prefix: bool
    extra_rows: int


@record
class RowsMoved(Detail):
    """``rows`` of the ``smaller`` table, how many are in the larger one, and how many under the same number."""

    rows: int
    rows_matched: int
    rows_in_place: int
    extra_rows: int
    prefix: bool
    smaller: str


@record
class RowsDiffering(Detail):
    """Some rows differ and the others are equal."""

    rows_differing: int
    rows: int
    cast: str
    extra_rows: int


@record
class Shifted(Detail):
    """One vector of length ``shift_length`` is added to each row."""

    shifted: bool
    shift_length: float


@record
class Scaled(Detail):
    """The whole table is multiplied by ``factor``. If ``shifted``, one vector is added to each row."""

    shifted: bool
    shift_length: float
    factor: float


@record
class ColumnsScaled(Detail):
    """Each column has a factor. If ``shifted``, one vector is added to each row."""

    shifted: bool
    shift_length: float
    gain_min: float
    gain_max: float


@record
class RowsScaled(Detail):
    """Each row has a factor."""

    factor_min: float
    factor_max: float


@record
class Orthogonal(Detail):
    """An orthogonal map times ``factor``."""

    factor: float
    adjusted_r2: float


@record
class LinearlyMapped(Detail):
    """A linear map of this condition number."""

    condition: float
    adjusted_r2: float


@record
class LowRank(Detail):
    """The difference of the tables has this rank, up to the share ``explained`` of its energy."""

    rank: int
    explained: float


@record
class Quantised(Detail):
    """The head is the embedding after a round trip through ``scheme``.

    One scale is that of ``group`` numbers, 0 for a scheme without scales.
    """

    scheme: str
    bits: int
    group: int


@record
class NotClassified(Detail):
    """The class is unknown. ``reason`` is a clause that says why."""

    reason: str


RelationFigures = (
    NoFigures
    | RowsEqual
    | OnceRounded
    | RowsAppended
    | RowsMoved
    | RowsDiffering
    | Shifted
    | Scaled
    | ColumnsScaled
    | RowsScaled
    | Orthogonal
    | LinearlyMapped
    | LowRank
    | Quantised
    | NotClassified
)
