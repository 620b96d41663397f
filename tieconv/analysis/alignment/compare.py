"""Compare a tied table with the two tables of an untied model, to see which role it has.

The measures are those of Lopardo et al. 2026 (arXiv 2603.26663), each with its chance floor. A second untied model
gives ceilings: how well another seed reproduces the same role. The verdict uses neighbours, pair similarities and the
norm profile. Fitted maps are only reported: for unrelated tables their mean cosine is not 0. Input tables are also
less reproducible than output tables. Imports numpy: import it lazily.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from tieconv.analysis.alignment.linear import Pair
from tieconv.analysis.alignment.pair_figures import QUERIES, Compared, Figures, ceiling, compare
from tieconv.analysis.alignment.token_tables import Table
from tieconv.analysis.alignment.verdict import Contest, certainty, verdict
from tieconv.checkpoint.json_values import stated_fields
from tieconv.checkpoint.results.analysis import POINTS, Detail, Section
from tieconv.checkpoint.value_type import record

TITLE = "Alignment"

_PAIRS: dict[str, Pair] = {"E→U": (1, 2), "E→T": (1, 0), "U→T": (2, 0)}
_CEILINGS = {"E→T": "E→E'", "U→T": "U→U'"}


@record
class Untied:
    """The input and the output table of an untied model."""

    embedding: Table
    head: Table


@record
class AlignmentDetail(Detail):
    """The role of the tied table (``shape``), the tokens that were compared, and the evidence of the verdict.

    ``tables`` names the table of each letter. ``gaussian_floor`` and ``standard_error`` hold a figure for each measure
    of each pair of tables.
    """

    shape: str
    tables: dict[str, str]
    tokens: int
    left_out: int
    joined_by: str
    neighbours: int
    gaussian_floor: dict[str, dict[str, float]]
    standard_error: dict[str, dict[str, float]]
    evidence: tuple[Contest, ...]

    @property
    def legend(self) -> str:
        return "; ".join(f"{key}: {name}" for key, name in self.tables.items())

    def to_dict(self) -> dict[str, object]:
        return stated_fields(self) | {"evidence": [contest.to_dict() for contest in self.evidence]}


def align(
    tied: Table,
    untied: Untied,
    second: Untied | None = None,
    *,
    queries: int = QUERIES,
    seed: int = 0,
    exact: bool | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Section:
    """Compare the tied table T with the input table E and the output table U of ``untied``.

    ``second``, an untied model of another seed, gives the ceilings. Tables of different widths get only the
    least-squares map. Samples, memory and errors are those of `compare`.
    """
    tables = [tied, untied.embedding, untied.head, *((second.embedding, second.head) if second else ())]
    pairs = dict(_PAIRS) | ({"E→E'": (1, 3), "U→U'": (2, 4)} if second else {})
    return _section(compare(tables, pairs, queries=queries, seed=seed, exact=exact, progress=progress))


def _section(compared: Compared) -> Section:
    joined, contests = compared.joined, tuple(_contest(name, compared.figures) for name in ("knn", "rsa", "norms"))
    shape, sentence = verdict(contests)
    return Section(
        TITLE,
        sentence,
        tuple(compared.measures(_CEILINGS)),
        dict(norm_profiles(compared, ("tied", "embed", "head"))),
        AlignmentDetail(
            shape=shape,
            tables={key: table.name for key, table in zip(("T", "E", "U", "E'", "U'"), joined.tables, strict=False)},
            tokens=joined.count,
            left_out=joined.dropped,
            joined_by=joined.by,
            neighbours=compared.views[0].neighbours.shape[1],
            gaussian_floor=compared.gaussian_floor,
            standard_error=compared.standard_error,
            evidence=contests,
        ),
        certainty(shape, contests),
    )


def _contest(name: str, figures: Figures) -> Contest:
    sides = []
    for pair in ("E→T", "U→T"):
        figure, top = figures[pair][name], ceiling(figures, _CEILINGS[pair], name)
        assert figure.value is not None
        sides.append((figure.value, figure.floor, figure.error, top))
    return Contest(name, *sides)


def norm_profiles(compared: Compared, names: tuple[str, ...]) -> Iterator[tuple[str, tuple[float, ...]]]:
    """Yield the row norms of the common tokens, at most `POINTS` of each table."""
    count = compared.joined.count
    places = np.linspace(0, count - 1, min(POINTS, count)).astype(int)
    for name, view in zip(names, compared.views, strict=False):
        yield f"{name}_norm", tuple(float(norm) for norm in view.norms[places])
