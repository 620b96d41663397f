"""Compare a tied table with the two tables of an untied model, to see which role it has.

The measures are those of Lopardo et al. 2026 (arXiv 2603.26663), each with its chance floor. A second untied model
gives ceilings: how well another seed reproduces the same role. The verdict uses neighbours, pair similarities and the
norm profile. Fitted maps are only reported: for unrelated tables their mean cosine is not 0. Input tables are also
less reproducible than output tables. Imports numpy: import it lazily.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import sqrt

import numpy as np

from tieconv.analysis.alignment.linear import MAPS, Linear, Moments, expected, linear, moments
from tieconv.analysis.alignment.local import NEIGHBOURS, Local, Sample, draw, local, overlap, pearson, spearman
from tieconv.analysis.alignment.token_tables import Array, Joined, Table, join
from tieconv.analysis.alignment.verdict import Contest, certainty, verdict
from tieconv.checkpoint.json_values import stated_fields
from tieconv.checkpoint.results.analysis import POINTS, Detail, Measure, Section
from tieconv.checkpoint.value_type import record

TITLE = "Alignment"

QUERIES = 1000
"""Tokens whose neighbours are searched. The standard error of KNN is then below 0.01."""

_SAYS = {
    "identity": "mean cosine of each token's two rows without a map, columns centred; a shared seed raises it",
    "procrustes": "mean cosine after the best rotation",
    "least squares": "mean cosine after the best linear map",
    "cka": "linear CKA: cosine of the two matrices of token similarities; rotations do not change it",
    "knn": f"share of a token's {NEIGHBOURS} nearest tokens that both tables have in common",
    "rsa": "rank correlation of the cosines of random token pairs",
    "norms": "correlation of the row norms over tokens",
}
_UNITS = {"knn": "share", "rsa": "correlation", "norms": "correlation"}
_PAIRS = {"E→U": (1, 2), "E→T": (1, 0), "U→T": (2, 0)}
_CEILINGS = {"E→T": "E→E'", "U→T": "U→U'"}


@record
class Untied:
    """The input and the output table of an untied model."""

    embedding: Table
    head: Table


@record
class _Figure:
    value: float | None
    floor: float
    error: float  # standard error of the value
    formula: float | None = None  # the floor of unrelated Gaussian tables


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
    progress: Callable[[str], None] = lambda _: None,
) -> Section:
    """Compare the tied table T with the input table E and the output table U of ``untied``.

    ``second``, an untied model of another seed, gives the ceilings. Tokens are matched by their strings. Memory: a few
    blocks of rows and d×d sums in float64. Tables of different widths get only the least-squares map. Raises
    `RefusedError` if the tables share too few tokens, and the errors of the tables' readers.
    """
    tables = [tied, untied.embedding, untied.head, *((second.embedding, second.head) if second else ())]
    joined = join(tables)
    chance = np.random.default_rng(seed)
    sample, shuffle = draw(joined.count, queries, chance), chance.permutation(joined.count)
    k = max(1, min(NEIGHBOURS, joined.count - 2))
    views = []
    for which, table in enumerate(tables):
        progress(f"neighbours in {table.name}")
        views.append(local(joined, which, sample, k))
    known = [moments(joined, which) for which in range(len(tables))]
    pairs = dict(_PAIRS) | ({"E→E'": (1, 3), "U→U'": (2, 4)} if second else {})
    figures = {}
    for name, (source, target) in pairs.items():
        progress(name)
        figures[name] = _figures(joined, views, known, sample, (source, target), shuffle)
    return _section(joined, views, sample, figures)


def _figures(
    joined: Joined,
    views: list[Local],
    known: list[Moments],
    sample: Sample,
    pair: tuple[int, int],
    shuffle: Array,
) -> dict[str, _Figure]:
    """Return the measures of one pair of tables by name."""
    source, target = pair
    value, chance = (linear(joined, source, target, order, known) for order in (None, shuffle))
    return dict(_linear_figures(joined, pair, value, chance)) | _local_figures(
        joined, views[source], views[target], sample, shuffle
    )


def _linear_figures(
    joined: Joined, pair: tuple[int, int], value: Linear, chance: Linear
) -> Iterator[tuple[str, _Figure]]:
    source, target = (joined.tables[which].width for which in pair)
    for name in MAPS:
        formula = expected(name, joined.count, source)
        yield name, _Figure(value.cosines[name], chance.cosines[name] or 0.0, 0.0, formula)
    both = sqrt(expected("cka", joined.count, source) * expected("cka", joined.count, target))
    yield "cka", _Figure(value.cka, chance.cka, 0.0, both)


def _local_figures(joined: Joined, source: Local, target: Local, sample: Sample, shuffle: Array) -> dict[str, _Figure]:
    shared = overlap(source, target)
    k, asked = source.neighbours.shape[1], len(sample.queries)
    mixed = np.random.default_rng(0).permutation(len(source.cosines))
    return {
        "knn": _Figure(float(shared.mean()), k / (joined.count - 1), float(shared.std()) / sqrt(asked)),
        "rsa": _correlation(spearman, source.cosines, target.cosines, mixed, asked),
        "norms": _correlation(pearson, source.norms, target.norms, shuffle, joined.count),
    }


def _correlation(
    measure: Callable[[Array, Array], float], left: Array, right: Array, order: Array, tokens: int
) -> _Figure:
    """Return a correlation, its value with one side shuffled, and its standard error.

    The error is 1/√(n-3) of Fisher's z, scaled back to the correlation.
    """
    value = measure(left, right)
    return _Figure(value, measure(left, right[order]), (1 - value**2) / sqrt(max(1, tokens - 3)), 0.0)


def _section(joined: Joined, views: list[Local], sample: Sample, figures: dict[str, dict[str, _Figure]]) -> Section:
    contests = tuple(_contest(name, figures) for name in ("knn", "rsa", "norms"))
    shape, sentence = verdict(contests)
    return Section(
        TITLE,
        sentence,
        tuple(_measures(joined, sample, figures)),
        dict(_series(joined, views)),
        AlignmentDetail(
            shape=shape,
            tables={key: table.name for key, table in zip(("T", "E", "U", "E'", "U'"), joined.tables, strict=False)},
            tokens=joined.count,
            left_out=joined.dropped,
            joined_by=joined.by,
            neighbours=views[0].neighbours.shape[1],
            gaussian_floor={
                pair: {name: figure.formula for name, figure in row.items() if figure.formula is not None}
                for pair, row in figures.items()
            },
            standard_error={
                pair: {name: figure.error for name, figure in row.items() if figure.error}
                for pair, row in figures.items()
            },
            evidence=contests,
        ),
        certainty(shape, contests),
    )


def _contest(name: str, figures: Mapping[str, Mapping[str, _Figure]]) -> Contest:
    sides = []
    for pair in ("E→T", "U→T"):
        figure, ceiling = figures[pair][name], _ceiling(figures, pair, name)
        assert figure.value is not None
        sides.append((figure.value, figure.floor, figure.error, ceiling))
    return Contest(name, *sides)


def _ceiling(figures: Mapping[str, Mapping[str, _Figure]], pair: str, name: str) -> float | None:
    row = figures.get(_CEILINGS.get(pair, ""))
    return row[name].value if row else None


def _measures(joined: Joined, sample: Sample, figures: Mapping[str, Mapping[str, _Figure]]) -> Iterator[Measure]:
    counts = {"knn": len(sample.queries), "rsa": len(sample.pairs)}
    for name, says in _SAYS.items():
        for pair, row in figures.items():
            figure = row[name]
            yield Measure(
                f"{name} {pair}",
                figure.value,
                None if figure.value is None else figure.floor,
                _ceiling(figures, pair, name),
                counts.get(name, joined.count),
                _UNITS.get(name, "cosine"),
                says if figure.value is not None else "needs tables of equal width",
            )


def _series(joined: Joined, views: list[Local]) -> Iterator[tuple[str, tuple[float, ...]]]:
    """Yield the norm profiles: the row norms of the common tokens, at most `POINTS` of each table."""
    places = np.linspace(0, joined.count - 1, min(POINTS, joined.count)).astype(int)
    for name, view in zip(("tied", "embed", "head"), views, strict=False):
        yield f"{name}_norm", tuple(float(norm) for norm in view.norms[places])
