"""Measurements of the embedding tables, as frozen records that serialise to `tieconv.analyze/1`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from typing import Any

from tieconv.checkpoint.value_type import Listed, Printed, plain, quoted, record, values_of
from tieconv.text import count
from tieconv.version import VERSION


class Kinship(StrEnum):
    """The relation of the output table to the input table; the first that fits is the answer."""

    ALIAS = "alias"  # one tensor
    BIT_EQUAL = "bit-equal"
    CAST = "equal-after-cast"
    ROW_SUBSET = "row-subset"
    ROW_PERMUTATION = "row-permutation"
    ROWS_DIFFER = "k-rows-differ"
    GAUGE = "softmax-gauge"  # + 1c^T: every row moved by one vector, which the softmax cancels
    SCALAR = "scalar"
    DIAGONAL = "diagonal"  # as if a norm's scale is folded into the head
    ORTHOGONAL = "linear-orthogonal"
    SPD = "linear-spd"
    LINEAR = "linear-general"
    ROW_SCALED = "row-scaled"  # every row has its own factor
    LOW_RANK = "low-rank"  # the difference has a low rank, as after merging an adapter into the head
    DRIFT = "drift"  # each row is still closest to its own row, and no map within rounding explains the rest
    PARTLY_EQUAL = "partly-equal"  # some rows or columns are equal, and nothing explains the others
    INDEPENDENT = "independent"
    UNKNOWN = "unknown"  # not readable as two tables of floats, or too few rows to decide


_MEANINGS = {
    "rows that differ": "rows of the head that are not those of the embedding, byte for byte",
    "rows of zeros": "their logit is always 0, or the bias. Padding may have such rows; restore those of tokens",
    "rows of the head with NaN": "the logits of these tokens are not numbers. Restore the rows from an earlier save",
    "rows equal": "these tokens get the same logit, except for a bias. Padding and reserved tokens may have such rows",
    "rows": "the token ids that the table has a row for",
    "columns": "the numbers of each row (the hidden size)",
    "differing rows": "rows that differ, of ids that the tokenizer never gives: no text reaches them",
    "measured probability": "on the text. Compare it with the floor, the share of such rows",
    "mean": "the same number for every token would change no probability",
    "standard deviation": "how much the bias prefers some tokens. 0 is a bias that changes no probability",
    "top-1": "share of the text whose most likely next token stays the same",
    "gradient": "how strongly a training step on the text changes the table from this end",
    "cosine of the two": "1 if both ends change the table in one direction, and 0 if neither disturbs the other",
    "slope": "how much the value grows if a token is e times as frequent",
}
"""The meaning of figures whose name starts so, if the figure itself says nothing."""
POINTS = 4096
"""The most points of one series: longer series are thinned evenly."""


@record
class Measure(Listed):
    """One figure with the values to compare it with.

    ``value`` is ``None`` if the figure was refused or is undefined (``says`` gives the reason). ``floor`` is the value
    by chance alone, ``ceiling`` the best that can be expected. ``n`` is the number of rows, pairs or tokens behind the
    figure.
    """

    name: str
    value: float | None
    floor: float | None = None
    ceiling: float | None = None
    n: int | None = None
    unit: str = ""
    says: str = ""

    @property
    def meaning(self) -> str:
        """What the figure means for people: ``says``, or the meaning of every figure of that name."""
        return self.says or next((text for start, text in _MEANINGS.items() if self.name.startswith(start)), "")

    @property
    def units(self) -> str:
        """The unit for people: singular if the value is 1."""
        return self.unit.removesuffix("s") if self.value == 1 else self.unit


@record
class Section:
    """One question: a sentence that answers it, the figures behind, numbers to plot, and its JSON ``detail``.

    ``series`` have at most `POINTS` numbers each. ``certainty`` says how sure the sentence is, if it can answer the
    question of the command. ``legend`` is the meaning of the letters in the measures' tables; empty if there are none.
    """

    title: str
    sentence: str
    measures: tuple[Measure, ...]
    series: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    detail: Mapping[str, Any] = field(default_factory=dict)
    certainty: str = ""
    legend: str = ""

    @property
    def figures(self) -> tuple[Measure, ...]:
        """The measures for people: without those that are not given for the reason in the sentence."""
        return tuple(part for part in self.measures if part.value is not None or part.says not in self.sentence)

    def to_dict(self) -> dict[str, object]:
        """Return one entry of ``sections``."""
        return values_of(self, "title sentence measures series detail")


MAY_BE_TIED = "May the embedding and the head be one tensor?"


@record
class Headline:
    """The question, the answer, and its certainty."""

    question: str
    answer: str
    certainty: str = ""

    def __str__(self) -> str:
        sure = f" How sure: {self.certainty}." if self.certainty else ""
        return f"{self.question} {self.answer}{sure}"


@record
class Analysis(Printed):
    """The answer of `tieconv analyze`.

    ``relation`` is the relation of the head to the embedding, such as ``bit-equal``. ``verdict`` is one sentence that
    says whether they may be tied. ``answered`` is the answer about a second model, if the user named one.
    """

    source: str
    sections: tuple[Section, ...]
    relation: str
    verdict: str
    answered: Headline | None = None

    @property
    def headline(self) -> Headline:
        """The question, the answer, and its certainty."""
        if self.answered is not None:
            return self.answered
        certainty = next((section.certainty for section in self.sections if section.sentence == self.verdict), "")
        return Headline(MAY_BE_TIED, self.verdict, certainty)

    @property
    def beyond_headline(self) -> tuple[Section, ...]:
        """The sections that say more than the headline."""
        answer = self.headline.answer
        return tuple(part for part in self.sections if part.measures or part.series or part.sentence != answer)

    def section(self, title: str) -> Section | None:
        """Return the section with this title."""
        return next((section for section in self.sections if section.title == title), None)

    def _facts(self) -> tuple[str, ...]:
        return quoted(self.source), self.relation, count(len(self.sections), "section")

    def _rows(self) -> tuple[tuple[str, ...], ...]:
        return tuple((section.title, section.sentence) for section in self.sections)

    def to_dict(self) -> dict[str, object]:
        """Return the document of schema `tieconv.analyze/1`."""
        names = "source relation verdict headline sections"
        return {"schema": "tieconv.analyze/1", "tieconv": VERSION, **values_of(self, names)}


# How the tables of a model change over its revisions, as frozen records that serialise to `tieconv.evolution/1`.


@record
class RevisionFigures:
    """The figures of one revision.

    ``step`` is the training step in its name, if every name has one. ``identity`` is its commit, or a digest of the
    state of its files. ``errors`` are standard errors by the name of the measure. ``reused`` means that an earlier run
    measured it.
    """

    name: str
    source: str
    step: int | None
    identity: str
    tables: Mapping[str, str]
    measures: tuple[Measure, ...]
    errors: Mapping[str, float] = field(default_factory=dict)
    reused: bool = False

    def measure(self, name: str) -> Measure | None:
        """Return the measure with this name."""
        return next((measure for measure in self.measures if measure.name == name), None)

    def to_dict(self) -> dict[str, object]:
        """Return one entry of ``revisions``."""
        errors = ({"standard_error": plain(self.errors.get(measure.name))} for measure in self.measures)
        measures = [measure.to_dict() | error for measure, error in zip(self.measures, errors, strict=True)]
        return values_of(self, "name source step identity tables reused") | {"measures": measures}


@record
class Evolution(Printed):
    """The answer of `tieconv analyze` for the revisions of a model: the figures of each, in their order."""

    source: str
    headline: Headline
    revisions: tuple[RevisionFigures, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all measures, in their order."""
        every = (measure.name for revision in self.revisions for measure in revision.measures)
        return tuple(dict.fromkeys(every))

    def _facts(self) -> tuple[str, ...]:
        return quoted(self.source), count(len(self.revisions), "revision")

    def _rows(self) -> tuple[tuple[str, ...], ...]:
        return ((self.headline.question, self.headline.answer),)

    def to_dict(self) -> dict[str, object]:
        """Return the document of schema `tieconv.evolution/1`."""
        return {"schema": "tieconv.evolution/1", "tieconv": VERSION, **values_of(self, "source headline revisions")}
