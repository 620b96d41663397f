"""What the analysis of the embedding tables measured: frozen records that serialise to `tieconv.analyze/1`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, field
from enum import StrEnum

from tieconv.checkpoint.json_values import Printed, plain, quoted, stated_fields
from tieconv.checkpoint.value_type import record
from tieconv.text import count
from tieconv.version import VERSION

ANALYZE_SCHEMA = "tieconv.analyze/1"


class Kinship(StrEnum):
    """What the output table is to the input table; the first that fits is the answer."""

    ALIAS = "alias"  # one tensor
    BIT_EQUAL = "bit-equal"
    CAST = "equal-after-cast"
    ROW_SUBSET = "row-subset"
    ROW_PERMUTATION = "row-permutation"
    ROWS_DIFFER = "k-rows-differ"
    GAUGE = "softmax-gauge"  # + 1c^T: every row moved by one vector, which the softmax does not see
    SCALAR = "scalar"
    DIAGONAL = "diagonal"  # as a norm's scale folded into the head leaves it
    ORTHOGONAL = "linear-orthogonal"
    SPD = "linear-spd"
    LINEAR = "linear-general"
    ROW_SCALED = "row-scaled"  # one factor for each row
    LOW_RANK = "low-rank"  # a difference of low rank, as an adapter that was merged into the head leaves it
    DRIFT = "drift"  # each row still knows its own, and no map within rounding explains the rest
    PARTLY_EQUAL = "partly-equal"  # some rows or columns are equal, and nothing gives the others
    INDEPENDENT = "independent"
    UNKNOWN = "unknown"  # not readable as two tables of floats, or too few rows to say


POINTS = 4096
"""The most points of one series: longer ones are thinned out evenly."""


@record
class Measure:
    """One figure with what it is to be held against.

    ``value`` is ``None`` where the figure was refused or is undefined (``says`` gives the reason). ``floor`` is what
    chance alone would give, ``ceiling`` the best that can be expected, ``n`` the number of rows, pairs or tokens that
    it rests on.
    """

    name: str
    value: float | None
    floor: float | None = None
    ceiling: float | None = None
    n: int | None = None
    unit: str = ""
    says: str = ""

    @property
    def units(self) -> str:
        """The unit for people: in the singular where the value is 1."""
        return self.unit.removesuffix("s") if self.value == 1 else self.unit

    def to_dict(self) -> dict[str, object]:
        """One entry of a section's ``measures``."""
        return {
            "name": self.name,
            "value": plain(self.value),
            "floor": plain(self.floor),
            "ceiling": plain(self.ceiling),
            "n": self.n,
            "unit": self.unit,
            "says": self.says,
        }


@record
class Detail:
    """The base of what a section states under ``detail``; a section that states nothing there has this one."""

    @property
    def legend(self) -> str:
        """What the letters stand for that name the measures' tables; empty where none does."""
        return ""

    def to_dict(self) -> dict[str, object]:
        """The object under ``detail``: each field but those that have their default."""
        return stated_fields(self)


@record
class Section:
    """One question: a plain sentence that answers it, the figures behind, numbers to plot, and its own record.

    ``series`` are of at most `POINTS` numbers each. ``certainty`` says how sure the sentence is, where it may answer
    what was asked.
    """

    title: str
    sentence: str
    measures: tuple[Measure, ...]
    series: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    detail: Detail = Detail()
    certainty: str = ""

    @property
    def legend(self) -> str:
        """What the letters stand for that name the measures' tables; empty where none does."""
        return self.detail.legend

    def to_dict(self) -> dict[str, object]:
        """One entry of ``sections``."""
        return {
            "title": self.title,
            "sentence": self.sentence,
            "measures": [measure.to_dict() for measure in self.measures],
            "series": {name: plain(list(points)) for name, points in self.series.items()},
            "detail": plain(self.detail.to_dict()),
        }


MAY_BE_TIED = "May the embedding and the head be one tensor?"


@record
class Headline:
    """What was asked, the answer, and how sure it is."""

    question: str
    answer: str
    certainty: str = ""

    def __str__(self) -> str:
        sure = f" How sure: {self.certainty}." if self.certainty else ""
        return f"{self.question} {self.answer}{sure}"


@record
class Analysis(Printed):
    """The answer of `tieconv analyze`.

    ``relation`` is the class of what the head is to the embedding (such as ``bit-equal``), ``verdict`` one sentence
    that says whether they may be tied. ``answered`` is about the question of another model, where one was named.
    """

    source: str
    sections: tuple[Section, ...]
    relation: str
    verdict: str
    answered: Headline | None = None

    @property
    def headline(self) -> Headline:
        """What was asked, the answer, and how sure it is."""
        if self.answered is not None:
            return self.answered
        certainty = next((section.certainty for section in self.sections if section.sentence == self.verdict), "")
        return Headline(MAY_BE_TIED, self.verdict, certainty)

    def section(self, title: str) -> Section | None:
        """The section of this title."""
        return next((section for section in self.sections if section.title == title), None)

    def _facts(self) -> tuple[str, ...]:
        return quoted(self.source), self.relation, count(len(self.sections), "section")

    def _rows(self) -> tuple[tuple[str, ...], ...]:
        return tuple((section.title, section.sentence) for section in self.sections)

    def to_dict(self) -> dict[str, object]:
        """The document of schema `tieconv.analyze/1`."""
        return {
            "schema": ANALYZE_SCHEMA,
            "tieconv": VERSION,
            "source": self.source,
            "relation": self.relation,
            "verdict": self.verdict,
            "headline": asdict(self.headline),
            "sections": [section.to_dict() for section in self.sections],
        }
