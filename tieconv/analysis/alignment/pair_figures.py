"""The measures of pairs of tables, each with its chance floor and its standard error.

Imports numpy: import it lazily.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import sqrt

import numpy as np

from tieconv.analysis.alignment.linear import MAPS, Linear, Pair, Sums, expected, linear, sampled_rows, sums
from tieconv.analysis.alignment.local import NEIGHBOURS, Local, Sample, draw, local, overlap, pearson, spearman
from tieconv.analysis.alignment.token_tables import Array, Joined, Table, join
from tieconv.checkpoint.results.analysis import Measure
from tieconv.checkpoint.value_type import record

QUERIES = 1000
"""Tokens whose neighbours are searched in a long table. The standard error of KNN is then below 0.01."""

MAPPED = 8192
"""Tokens whose mapped rows are compared in a long table. The standard error of a mean cosine is then below 0.003."""

EXACT = 16_384
"""The most tokens of tables that are measured without a sample. The work of KNN grows with the square."""

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


@record
class Figure:
    """A measure of one pair of tables. ``error`` is its standard error over tokens, 0 if it has none.

    ``n`` is the number of tokens or pairs of tokens behind it, and ``sampled`` whether there are more. ``formula`` is
    the floor of unrelated Gaussian tables.
    """

    value: float | None
    floor: float
    error: float
    n: int
    sampled: bool = False
    formula: float | None = None

    @property
    def interval(self) -> str:
        """The 95 % interval for all tokens as text, empty if the figure is of all tokens."""
        if not self.sampled or self.value is None:
            return ""
        low, high = self.value - 1.96 * self.error, self.value + 1.96 * self.error
        return f"; 95 % interval {low:.4f} to {high:.4f}, because tokens were sampled"


Figures = Mapping[str, Mapping[str, Figure]]
"""Figures by pair of tables, such as E→U, and by measure."""


@record
class Compared:
    """Tables with their common tokens, the local measures of each, and the figures of each pair."""

    joined: Joined
    views: list[Local]
    figures: Figures

    @property
    def gaussian_floor(self) -> dict[str, dict[str, float]]:
        """The floors of unrelated Gaussian tables, by pair and measure."""
        return {
            pair: {name: figure.formula for name, figure in row.items() if figure.formula is not None}
            for pair, row in self.figures.items()
        }

    @property
    def standard_error(self) -> dict[str, dict[str, float]]:
        """The standard errors, by pair and measure."""
        return {
            pair: {name: figure.error for name, figure in row.items() if figure.error}
            for pair, row in self.figures.items()
        }

    def measures(self, ceilings: Mapping[str, str] | None = None) -> Iterator[Measure]:
        """Yield each measure of each pair. ``ceilings`` names the pair that is the ceiling of another."""
        for name, says in _SAYS.items():
            for pair, row in self.figures.items():
                figure = row[name]
                yield Measure(
                    f"{name} {pair}",
                    figure.value,
                    None if figure.value is None else figure.floor,
                    ceiling(self.figures, (ceilings or {}).get(pair, ""), name),
                    figure.n,
                    _UNITS.get(name, "cosine"),
                    f"{says}{figure.interval}" if figure.value is not None else "needs tables of equal width",
                )


def ceiling(figures: Figures, pair: str, name: str) -> float | None:
    """Return the value of a measure of ``pair``, or ``None`` if that pair was not compared."""
    row = figures.get(pair)
    return row[name].value if row else None


def compare(
    tables: Sequence[Table],
    pairs: Mapping[str, Pair],
    *,
    queries: int = QUERIES,
    seed: int = 0,
    exact: bool | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Compared:
    """Measure ``pairs`` of tables, which are named by their numbers. Tokens are matched by their strings.

    With ``exact``, by default for up to `EXACT` common tokens, all neighbours and all mapped rows count. Otherwise the
    neighbours of ``queries`` tokens are searched among all, and the rows of `MAPPED` tokens are mapped. The maps are
    fitted on all tokens. Memory: a few blocks of rows, and a d×d matrix of float64 for each table and pair. Raises
    `RefusedError` if the tables share too few tokens, and the errors of the tables' readers.
    """
    joined = join(tables)
    chance = np.random.default_rng(seed)
    exact = joined.count <= EXACT if exact is None else exact
    sample, shuffle = draw(joined.count, queries, chance, mapped=MAPPED, exact=exact), chance.permutation(joined.count)
    k = max(1, min(NEIGHBOURS, joined.count - 2))
    views = []
    for which, table in enumerate(tables):
        progress(f"neighbours in {table.name}")
        views.append(local(joined, which, sample, k))
    progress("sums of products")
    known = sums(joined, list(pairs.values()))
    if len(sample.mapped) < joined.count:
        known.sample = sampled_rows(joined, known, sample.mapped)
    figures = {}
    for name, pair in pairs.items():
        progress(name)
        figures[name] = _figures(joined, views, known, sample, pair, shuffle)
    return Compared(joined, views, figures)


def _figures(
    joined: Joined, views: list[Local], known: Sums, sample: Sample, pair: Pair, shuffle: Array
) -> dict[str, Figure]:
    """Return the measures of one pair of tables by name."""
    mixed = np.random.default_rng(0).permutation(len(sample.mapped))
    value, chance = (linear(joined, *pair, order, known, sample.mapped) for order in (None, mixed))
    return dict(_linear_figures(joined, pair, value, chance, sample)) | _local_figures(
        joined, views[pair[0]], views[pair[1]], sample, shuffle
    )


def _linear_figures(
    joined: Joined, pair: Pair, value: Linear, chance: Linear, sample: Sample
) -> Iterator[tuple[str, Figure]]:
    source, target = (joined.tables[which].width for which in pair)
    n = len(sample.mapped)
    for name in MAPS:
        formula, error = expected(name, joined.count, source), value.errors.get(name, 0.0)
        yield name, Figure(value.cosines[name], chance.cosines[name] or 0.0, error, n, n < joined.count, formula)
    both = sqrt(expected("cka", joined.count, source) * expected("cka", joined.count, target))
    yield "cka", Figure(value.cka, chance.cka, 0.0, joined.count, formula=both)


def _local_figures(joined: Joined, source: Local, target: Local, sample: Sample, shuffle: Array) -> dict[str, Figure]:
    shared = overlap(source, target)
    k, asked = source.neighbours.shape[1], len(sample.queries)
    mixed = np.random.default_rng(0).permutation(len(source.cosines))
    drawn, count = len(sample.drawn), joined.count
    error = float(shared.std()) / sqrt(asked)
    return {
        "knn": Figure(float(shared.mean()), k / (count - 1), error, asked, asked < count),
        "rsa": _correlation(spearman, (source.cosines, target.cosines), mixed, drawn, drawn < count),
        "norms": _correlation(pearson, (source.norms, target.norms), shuffle, count, False),
    }


def _correlation(
    measure: Callable[[Array, Array], float], sides: tuple[Array, Array], order: Array, tokens: int, sampled: bool
) -> Figure:
    """Return a correlation, its value with one side shuffled, and its standard error over ``tokens``.

    The error is 1/√(n-3) of Fisher's z, scaled back to the correlation.
    """
    left, right = sides
    value = measure(left, right)
    error = (1 - value**2) / sqrt(max(1, tokens - 3))
    return Figure(value, measure(left, right[order]), error, len(left), sampled, 0.0)
