"""How the head relates to the embedding, and the evidence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from tieconv.analysis.model.moments import Moments
from tieconv.analysis.relation.figures import NoFigures, RelationFigures
from tieconv.analysis.relation.fits import Fit
from tieconv.analysis.relation.linear_map import Linear
from tieconv.checkpoint.results.analysis import Kinship
from tieconv.checkpoint.value_type import record


@record
class Related:
    """The class of the head and the evidence. ``residual`` is ‖U − Û‖ / ‖U‖ of the map that the class names.

    ``within_rounding`` says whether rounding explains that residual; ``retrieval`` is P@1 by map, over ``asked`` rows.
    """

    kind: Kinship
    moments: Moments
    residual: float | None = None
    tolerance: float | None = None
    within_rounding: bool = False
    fit: Fit | None = None
    linear: Linear | None = None
    fits: tuple[Fit, ...] = ()
    retrieval: Mapping[str, float] = field(default_factory=dict)
    asked: int = 0
    figures: RelationFigures = NoFigures()
