"""How the tables of a model change over its revisions, as frozen records that serialise to `tieconv.evolution/1`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, field

from tieconv.checkpoint.json_values import Printed, plain, quoted
from tieconv.checkpoint.results.analysis import Headline, Measure
from tieconv.checkpoint.value_type import record
from tieconv.text import count
from tieconv.version import VERSION

EVOLUTION_SCHEMA = "tieconv.evolution/1"


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
        return {
            "name": self.name,
            "source": self.source,
            "step": self.step,
            "identity": self.identity,
            "tables": dict(self.tables),
            "reused": self.reused,
            "measures": [
                measure.to_dict() | {"standard_error": plain(self.errors.get(measure.name))}
                for measure in self.measures
            ],
        }


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
        return {
            "schema": EVOLUTION_SCHEMA,
            "tieconv": VERSION,
            "source": self.source,
            "headline": asdict(self.headline),
            "revisions": [revision.to_dict() for revision in self.revisions],
        }
