"""Relations that a comparison of bytes proves: equal, cast, a part, permuted rows, some rows differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace

import numpy as np

from tieconv.analysis.model.equal_rows import digests, overlap
from tieconv.analysis.model.moments import SQUARED, Moments, measure
from tieconv.analysis.model.tables import Table, spans
from tieconv.analysis.relation.fits import Fit
from tieconv.analysis.relation.linear_map import Linear
from tieconv.analysis.relation.rounding_tolerance import precision
from tieconv.checkpoint.results.analysis import Kinship
from tieconv.checkpoint.value_type import record
from tieconv.inspection.numeric.bits import FORMATS, convert

FEW = 32
"""Tables with fewer common rows are called equal or not, and nothing finer."""

HALF = 0.5
"""Share of rows that must be equal, or find their own, for the classes that say which rows are not."""

SAME = 1e-12
"""Share of a table's energy that is no more than what summing leaves of rows that are all the same."""


@record
class Related:
    """The class and the evidence for it. ``residual`` is ‖U − Û‖ / ‖U‖ of the map that the class names.

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
    detail: Mapping[str, object] = field(default_factory=dict)


def equal_tables(embed: Table, head: Table) -> bool:
    """Whether no bit differs, or none once the wider is rounded to the narrower: without looking for maps.

    Raises what the reader raises.
    """
    moments = measure(embed, head)
    equality = equal_by_bytes(embed, head, moments)
    if equality is None and not untellable(moments):
        equality = once_rounded(embed, head, moments, (precision(embed), precision(head)))
    return equality is not None and equality.kind in (Kinship.BIT_EQUAL, Kinship.CAST)


def once_rounded(embed: Table, head: Table, moments: Moments, kinds: tuple[str, str]) -> Related | None:
    """Two float32 tables of which one was once rounded to a narrower type, and is the other rounded to it."""
    if {embed.record.dtype, head.record.dtype} != {"F32"} or kinds[0] == kinds[1] or "F32" not in kinds:
        return None
    wide, narrow = (embed, head) if kinds[0] == "F32" else (head, embed)
    form = FORMATS[min(kinds, key=lambda kind: FORMATS[kind].mantissa)]
    for start, stop in spans(moments.rows, embed.width):
        left, right = (convert(table.bits(start, stop).reshape(-1), table.form, form) for table in (wide, narrow))
        if (left != right).any():
            return None
    moments = replace(moments, cast=form.name)
    differing = int(np.count_nonzero(moments.unequal))
    detail = {"rows_differing": differing, "rows": moments.rows, "cast": form.name, "stored": "F32"}
    return exact_relation(Kinship.CAST, moments, detail)


def untellable(moments: Moments) -> str:
    """Why no map can be told from another; empty where one can. Of a table of one row all over any would do."""
    if moments.count < FEW:
        return f"fewer than {FEW} rows that both tables have and that hold no NaN or infinity"
    for name, squares, mean in zip(("embedding", "head"), moments.squares, moments.means, strict=True):
        if float(squares.sum()) < moments.count * SQUARED[0] ** 2 and moments.norms[name == "head"].any():
            return f"the numbers of the {name} are too small to be squared"
        if float((squares - moments.count * mean**2).sum()) <= SAME * float(squares.sum()):
            return f"every row of the {name} is the same"
    return ""


def equal_by_bytes(embed: Table, head: Table, moments: Moments) -> Related | None:
    """The classes that are proved by comparing bytes."""
    differing, rows = int(np.count_nonzero(moments.unequal)), moments.rows
    telling = rows - int(np.count_nonzero((moments.norms[0][:rows] == 0) & (moments.norms[1][:rows] == 0)))
    extra = head.rows - embed.rows
    sides = {"rows_differing": differing, "rows": rows, "cast": moments.cast}
    if not differing and extra:
        return exact_relation(Kinship.ROW_SUBSET, moments, sides | {"prefix": True, "extra_rows": extra})
    if not differing:
        return exact_relation(Kinship.CAST if moments.cast else Kinship.BIT_EQUAL, moments, sides)
    if not moments.cast:
        moved = _moved_rows(embed, head, moments, extra)
        if moved is not None:
            return moved
    if differing <= HALF * telling and rows >= FEW:  # rows of zeros in both would be equal under any map
        return exact_relation(Kinship.ROWS_DIFFER, moments, difference_detail(embed, head, moments))
    return None


def difference_detail(embed: Table, head: Table, moments: Moments) -> dict[str, object]:
    """Return how many rows differ, of how many, and how many one table has beyond the other."""
    differing = int(np.count_nonzero(moments.unequal))
    extra = head.rows - embed.rows
    return {"rows_differing": differing, "rows": moments.rows, "cast": moments.cast, "extra_rows": extra}


def exact_relation(kind: Kinship, moments: Moments, detail: Mapping[str, object]) -> Related:
    """Return a relation that needs no map, with the residual of rows that differ."""
    residual = 0.0
    if kind is Kinship.ROWS_DIFFER:
        differences = moments.distances[moments.finite]
        residual = float(np.linalg.norm(differences) / np.sqrt(moments.energies[1])) if moments.energies[1] else 0.0
    return Related(kind, moments, residual, 0.0, kind is not Kinship.ROWS_DIFFER, detail=detail)


def _moved_rows(embed: Table, head: Table, moments: Moments, extra: int) -> Related | None:
    """Rows of the smaller table that stand elsewhere in the larger: all of them, or most where few stand in place."""
    from_head = head.rows <= embed.rows
    small, large = (head, embed) if from_head else (embed, head)
    small_digests, large_digests = digests(small), digests(large)
    matched = overlap(small_digests, large_digests)
    in_place = moments.rows - int(np.count_nonzero(moments.unequal))
    there = [norms != 0 for norms in (moments.norms[::-1] if from_head else moments.norms)]
    # A row of zeros is no sign of another's place.
    telling, shared = int(np.count_nonzero(there[0])), overlap(small_digests[there[0]], large_digests[there[1]])
    if matched < small.rows and (shared <= HALF * telling or small.rows < FEW):
        return None
    if in_place > HALF * small.rows and (not extra or matched < small.rows):  # most stand where they should
        return None
    detail = {
        "rows": small.rows,
        "rows_matched": matched,
        "rows_in_place": in_place,
        "extra_rows": extra,
        "prefix": False,
        "smaller": "head" if from_head else "embedding",
    }
    return Related(Kinship.ROW_SUBSET if extra else Kinship.ROW_PERMUTATION, moments, 0.0, 0.0, True, detail=detail)
