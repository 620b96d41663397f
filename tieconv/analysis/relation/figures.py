"""What was measured of a class of relation: one record for each, with its JSON under a section's ``detail``.

Of ``rows`` and ``rows_differing`` the former are the rows that both tables have.
"""

from __future__ import annotations

from tieconv.checkpoint.results.analysis import Detail
from tieconv.checkpoint.value_type import record


@record
class NoFigures(Detail):
    """A class without figures of its own."""


@record
class RowsEqual(Detail):
    """No row differs: bit by bit, or once the wider type is rounded to ``cast``."""

    rows_differing: int
    rows: int
    cast: str


@record
class OnceRounded(Detail):
    """One of two tables of type ``stored`` was once rounded to ``cast``, and is the other one rounded to it."""

    rows_differing: int
    rows: int
    cast: str
    stored: str


@record
class RowsAppended(Detail):
    """The tables are equal row by row, and the head has ``extra_rows`` more (fewer, where negative)."""

    rows_differing: int
    rows: int
    cast: str
    prefix: bool
    extra_rows: int


@record
class RowsMoved(Detail):
    """``rows`` of the ``smaller`` table: how many are rows of the larger one, and how many have the same number."""

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
    """The whole table times ``factor``, with one vector added to each row where ``shifted``."""

    shifted: bool
    shift_length: float
    factor: float


@record
class ColumnsScaled(Detail):
    """Each column has a factor, with one vector added to each row where ``shifted``."""

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
    """The difference of the tables has this rank."""

    rank: int


@record
class IntegerCodes(Detail):
    """The head is the embedding in codes of so many bits and back, one scale for each ``group`` of numbers."""

    bits: int
    group: int


@record
class NotClassified(Detail):
    """No class can be told from another; ``reason`` is the end of a sentence."""

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
    | IntegerCodes
    | NotClassified
)
