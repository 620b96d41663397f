"""Measure how alike two tables of the same tokens are, each measure with its chance floor.

Imports numpy: import it lazily.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import pi, sqrt

import numpy as np

from tieconv.analysis.relation_maps import EXACT, fitted_rows
from tieconv.analysis.token_tables import FEWEST, Array, Joined, Table, directed_rows, join
from tieconv.checkpoint.results.analysis import POINTS, Measure, Section
from tieconv.checkpoint.value_type import record

# Measures that need no map: nearest neighbours (KNN), pair similarities (RSA) and row norms.
#
# Rows are as stored, not centred. RSA uses sampled tokens, and KNN sampled ones or all.

NEIGHBOURS = 10
PAIRS = 200_000

QUERIES_AT_ONCE = 2048
"""The most tokens whose neighbours are searched in one pass over the rows."""


@record
class Local:
    """The local measures of one table: nearest tokens of the sample, cosines of random pairs, and all row norms."""

    neighbours: Array  # (queries, k) places, sorted
    cosines: Array  # (pairs,)
    norms: Array  # (tokens,)


@record
class Sample:
    """The tokens whose neighbours are searched (``queries``), those of the random ``pairs``, and those of the maps.

    All are places of the common order; ``pairs`` (pairs, 2) are indices into ``drawn``. The maps are fitted on the
    tokens ``fitted``. ``held_out`` are tokens without them that are mapped, and ``inside`` some of them. Without a
    sample, ``fitted`` are all tokens, and the others are empty.
    """

    queries: Array
    drawn: Array
    pairs: Array
    fitted: Array
    held_out: Array
    inside: Array


def draw(count: int, queries: int, chance: np.random.Generator, *, width: int = 0, exact: bool = False) -> Sample:
    """Draw at most ``queries`` of ``count`` tokens, at most `PAIRS` pairs of `PAIRED`, and those of the maps.

    With ``exact``, all neighbours are searched, and the maps are of all tokens.
    """
    order, every = chance.permutation(count), np.arange(count)
    drawn = np.sort(order[: min(PAIRED, count)])
    first, second = chance.integers(0, len(drawn), (2, min(PAIRS, 4 * len(drawn) ** 2)))
    pairs = np.stack([first, second], axis=1)[first != second]
    if exact:
        return Sample(every, drawn, pairs, every, every[:0], every[:0])
    cut = fitted_rows(count, width)
    parts = order[:queries], order[:cut], order[cut : cut + MAPPED], order[: min(cut, INSIDE)]
    searched, fitted, held_out, inside = map(np.sort, parts)
    return Sample(searched, drawn, pairs, fitted, held_out, inside)


def local(joined: Joined, which: int, sample: Sample, k: int) -> Local:
    """Return the local measures of table ``which`` over a sample.

    Each pass over the rows searches the neighbours of one block of queries, at most `QUERIES_AT_ONCE`. Cosines are
    float32. Of tokens with equal cosines, those with the lowest places count.
    """
    step = min(QUERIES_AT_ONCE, joined.block_rows)
    parts = (sample.queries[start : start + step] for start in range(0, len(sample.queries), step))
    neighbours = np.concatenate([_nearest(joined, which, queries, k) for queries in parts])
    drawn = _units(joined.take(which, sample.drawn))
    left, right = sample.pairs.T
    cosines = (drawn @ drawn.T)[left, right]
    return Local(np.sort(neighbours, axis=1), cosines, joined.lengths[which].astype(np.float64))


def _nearest(joined: Joined, which: int, queries: Array, k: int) -> Array:
    """Return the ``k`` places with the largest cosine to each query, without the query itself: (queries, k)."""
    asked, nearest = _units(joined.take(which, queries)), _Nearest(len(queries), k)
    for places in joined.blocks():
        scores = asked @ joined.take(which, places).T
        scores /= joined.lengths[which][places]
        own = np.flatnonzero((queries >= places[0]) & (queries <= places[-1]))
        scores[own, queries[own] - places[0]] = -np.inf  # a token does not count as its neighbour
        nearest.add(scores, int(places[0]))
    return nearest.places


class _Nearest:
    """The k most similar places of each query so far, the best first, then the lowest."""

    def __init__(self, queries: int, k: int) -> None:
        self.places = np.full((queries, k), -1)
        self.scores = np.full((queries, k), -np.inf, np.float32)

    def add(self, scores: Array, first: int) -> None:
        """Add the scores (queries, n) of the places from ``first`` on, which are higher than all before."""
        k = self.scores.shape[1]
        better = scores > self.scores[:, -1:]  # an equal score of a higher place does not count
        if np.count_nonzero(better) > 4 * self.scores.size:
            better &= scores >= np.partition(scores, -k, axis=1)[:, -k, None]
        rows, columns = np.nonzero(better)
        if not len(rows):
            return
        which, starts, counts = np.unique(rows, return_index=True, return_counts=True)
        slots = np.arange(len(rows)) - np.repeat(starts, counts), np.repeat(np.arange(len(which)), counts)
        added = np.full((len(which), int(counts.max())), -np.inf, np.float32)
        names = np.full(added.shape, -1)
        added[slots[::-1]], names[slots[::-1]] = scores[rows, columns], columns + first
        added = np.concatenate([self.scores[which], added], axis=1)
        names = np.concatenate([self.places[which], names], axis=1)
        best = np.argsort(-added, axis=1, kind="stable")[:, :k]
        self.scores[which] = np.take_along_axis(added, best, 1)
        self.places[which] = np.take_along_axis(names, best, 1)


def overlap(source: Local, target: Local) -> Array:
    """Return the share of each query's neighbours that both tables have in common, (queries,)."""
    k = source.neighbours.shape[1]
    both = np.sort(np.concatenate([source.neighbours, target.neighbours], axis=1), axis=1)
    shares: Array = (both[:, 1:] == both[:, :-1]).sum(axis=1) / k
    return shares


def spearman(left: Array, right: Array) -> float:
    """Return the rank correlation, with ties at their mean rank."""
    return pearson(_ranks(left), _ranks(right))


def pearson(left: Array, right: Array) -> float:
    """Return the correlation, or 0 if a side is constant."""
    left, right = left - left.mean(), right - right.mean()
    scale = float(np.linalg.norm(left) * np.linalg.norm(right))
    return float(left @ right) / scale if scale > 0 else 0.0


def _ranks(values: Array) -> Array:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: Array = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    return ranks


def _units(rows: Array) -> Array:
    lengths: Array = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    units: Array = rows / lengths[:, None]
    return units


# The measures of pairs of tables, each with its chance floor and its standard error.

QUERIES = 400
"""Tokens whose neighbours are searched in a long table. The standard error of KNN is then below 0.025."""

PAIRED = 1000
"""Tokens from which pairs are drawn for RSA."""

MAPPED = 8192
"""Tokens that are mapped besides those of the fit. The standard error of a mean cosine is below 0.003."""

INSIDE = 2048
"""Tokens of the fit that are mapped too, because a map fits its own tokens better than all."""

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
    the floor of unrelated Gaussian tables. ``highest`` is the value on the tokens of a sample's own fit.
    """

    value: float | None
    floor: float
    error: float
    n: int
    sampled: bool = False
    formula: float | None = None
    highest: float | None = None

    @property
    def interval(self) -> str:
        """The 95 % interval for all tokens as text, empty if the figure is of all tokens."""
        if not self.sampled or self.value is None:
            return ""
        highest = self.value if self.highest is None else max(self.value, self.highest)
        low, high = self.value - 1.96 * self.error, highest + 1.96 * self.error
        return f"; 95 % interval {low:.4f} to {high:.4f}, because tokens were sampled"


Figures = Mapping[str, Mapping[str, Figure]]
"""Figures by pair of tables, such as E→U, and by measure."""


@record
class Compared:
    """Tables with their common tokens, the local measures of each, and the figures of each pair."""

    joined: Joined
    views: list[Local]
    figures: Figures

    def by_pair(self, read: Callable[[Figure], float | None]) -> dict[str, dict[str, float]]:
        """Return one number of each figure that has it, by pair and measure."""
        numbers = {pair: {name: read(figure) for name, figure in row.items()} for pair, row in self.figures.items()}
        return {pair: {name: n for name, n in row.items() if n is not None} for pair, row in numbers.items()}

    def measures(self, ceilings: Mapping[str, str] | None = None) -> Iterator[Measure]:
        """Yield each measure of each pair. ``ceilings`` names the pair that is the ceiling of another."""
        for name, says in _SAYS.items():
            for pair, row in self.figures.items():
                figure = row[name]
                most, unit = ceiling(self.figures, (ceilings or {}).get(pair, ""), name), _UNITS.get(name, "cosine")
                floor = None if figure.value is None else figure.floor
                text = f"{says}{figure.interval}" if figure.value is not None else "needs tables of equal width"
                yield Measure(f"{name} {pair}", figure.value, floor, most, figure.n, unit, text)


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
) -> Compared:
    """Measure ``pairs`` of tables, which are named by their numbers. Tokens are matched by their strings.

    With ``exact``, by default for up to `EXACT` common tokens, everything is of all tokens. Otherwise the neighbours of
    ``queries`` tokens are searched among all, and the maps are fitted on a sample. A sample's map does better on its
    own tokens than the best map of all tokens, and worse on others. So these two mean cosines bound the interval.

    Memory: a few blocks of rows, and a d×d matrix of float64 for each table and pair. Raises `RefusedError` if the
    tables share too few tokens, and the errors of the tables' readers.
    """
    joined = join(tables)
    chance = np.random.default_rng(seed)
    exact = joined.count <= EXACT if exact is None else exact
    sample = draw(joined.count, queries, chance, width=max(table.width for table in tables), exact=exact)
    shuffle, k = chance.permutation(joined.count), max(1, min(NEIGHBOURS, joined.count - 2))
    views = [local(joined, which, sample, k) for which in range(len(tables))]
    known = sums(joined, list(pairs.values()), None if exact else sample.fitted)
    figures = {
        name: dict((_linear_figures if exact else _sampled_figures)(joined, pair, known, sample))
        | _local_figures(joined, views[pair[0]], views[pair[1]], sample, shuffle)
        for name, pair in pairs.items()
    }
    return Compared(joined, views, figures)


def _linear_figures(joined: Joined, pair: Pair, known: Sums, sample: Sample) -> Iterator[tuple[str, Figure]]:
    n, width = joined.count, joined.tables[pair[0]].width
    mixed = np.random.default_rng(0).permutation(n)
    value, chance = (linear(joined, *pair, order, known) for order in (None, mixed))
    for name in MAPS:
        floor, error = chance.cosines[name] or 0.0, value.errors.get(name, 0.0)
        yield name, Figure(value.cosines[name], floor, error, n, formula=expected(name, n, width))
    yield "cka", Figure(value.cka, chance.cka, 0.0, n, formula=_gaussian_cka(joined, pair))


def _gaussian_cka(joined: Joined, pair: Pair) -> float:
    return sqrt(np.prod([expected("cka", joined.count, joined.tables[which].width) for which in pair]))


def _sampled_figures(joined: Joined, pair: Pair, known: Sums, sample: Sample) -> Iterator[tuple[str, Figure]]:
    maps = _maps(known, pair, known.crosses[pair])
    held_out, inside = (
        mapped_cosines(joined, pair, maps, known, places) for places in (sample.held_out, sample.inside)
    )
    n = len(sample.held_out)
    for name in MAPS:
        if name not in maps:
            yield name, Figure(None, 0.0, 0.0, n)
            continue
        value, error = float(held_out[name].mean()), float(held_out[name].std()) / sqrt(n)
        highest = None if name == "identity" else float(inside[name].mean())
        yield name, Figure(value, 0.0, error, n, True, 0.0, highest)
    yield "cka", _sampled_cka(joined, pair, known, sample)


def _sampled_cka(joined: Joined, pair: Pair, known: Sums, sample: Sample) -> Figure:
    """Estimate the CKA of all tokens from the products over a sample.

    ‖AᵀB‖² is the sum of (aᵢ·aⱼ)(bᵢ·bⱼ) over all pairs of tokens. Pairs of a token with itself and of two tokens are
    scaled differently, so no term is biased. The error is that of each token's first-order term (Hoeffding 1948). The
    floor is the mean over all permutations: tr(AᵀA)·tr(BᵀB) / (V − 1) in place of ‖AᵀB‖².
    """
    count, n = joined.count, len(sample.fitted)
    rows = [joined.take(which, sample.inside) - known.means[which] for which in pair]
    wholes, parts = [], []
    for left, right in ((0, 1), (0, 0), (1, 1)):
        product = known.crosses[pair] if left != right else known.grams[pair[left]]
        own = float((known.energies[pair[left]] * known.energies[pair[right]]).mean())
        pairs_scale = count * (count - 1) / (n - 1)
        wholes.append(count * own + pairs_scale * (float(np.square(product).sum()) / n - own))
        alone = np.prod([np.einsum("ij,ij->i", rows[side], rows[side], dtype="f8") for side in (left, right)], axis=0)
        joint = np.einsum("ij,ij->i", rows[left] @ product.astype("f4"), rows[right], dtype="f8")
        parts.append((count * alone + 2 * pairs_scale * (joint - alone)) / wholes[-1])
    scale = sqrt(wholes[1] * wholes[2])
    error = abs(wholes[0]) / scale * float(np.std(parts[0] - (parts[1] + parts[2]) / 2)) / sqrt(n)
    traces = [count * float(known.energies[which].mean()) for which in pair]
    floor = traces[0] * traces[1] / (count - 1) / scale
    return Figure(wholes[0] / scale, floor, error, n, True, _gaussian_cka(joined, pair))


def _local_figures(joined: Joined, source: Local, target: Local, sample: Sample, shuffle: Array) -> dict[str, Figure]:
    shared = overlap(source, target)
    k, asked = source.neighbours.shape[1], len(sample.queries)
    mixed = np.random.default_rng(0).permutation(len(source.cosines))
    drawn, count = len(sample.drawn), joined.count
    error = sqrt(
        (float(shared.var()) + (asked < count) / asked) / asked
    )  # no shared neighbour in a sample does not prove that there are none
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


# Measure how well a linear map explains a table: identity, orthogonal Procrustes, least squares and CKA, streamed.
#
# Both tables are column-centred. One pass over all tables sums products in float32 inside a block of rows, and in
# float64 across blocks. Then the mapped rows of tokens are compared with their targets: all tokens, or a sample.
# Imports numpy: import it lazily.

MAPS = ("identity", "procrustes", "least squares")

_ROUNDING = 1e-10
"""Share of the largest energy that rounding of float32 products may leave in an empty direction."""

_STEEP = 1e-13
"""Squared ratio of singular values below which eigenvectors of CᵀC are too inexact to start a polar factor."""

_INEXACT = 64 * np.finfo(np.float64).eps
"""Error of a polar factor from eigenvectors of CᵀC, for each unit of its condition number."""

BLOCKS_AT_ONCE = 2
"""Blocks of rows whose products are summed at once in float32. Fewer sums in float64 cost less."""

Pair = tuple[int, int]
"""The numbers of a source table and a target table."""


@record
class Linear:
    """Mean per-token cosine after each map (``None`` if widths differ), their standard errors, and CKA."""

    cosines: dict[str, float | None]
    cka: float
    errors: dict[str, float]


@dataclass
class Sums:
    """Moments of joined tables: for each table ``means`` (d,) float32 and centred ``grams`` (d, d), both by number.

    ``crosses`` maps a pair of tables to AᵀB, centred, (d, d'). ``energies`` are the squared lengths of the centred rows
    of a sample. ``inverse`` keeps what it computes.
    """

    means: list[Array]
    grams: list[Array]
    crosses: dict[Pair, Array]
    energies: list[Array]
    _inverses: dict[int, Array] = field(default_factory=dict)

    def inverse(self, which: int) -> Array:
        """Return the inverse of the gram of a table, (d, d), without directions that are rounding."""
        if which not in self._inverses:
            gram = self.grams[which]
            try:
                inverse = np.linalg.inv(gram)  # a third of the time of eigenvectors
            except np.linalg.LinAlgError:
                inverse = np.full_like(gram, np.inf)
            if not np.linalg.norm(inverse) * np.linalg.norm(gram) < 1 / _ROUNDING:
                inverse = np.linalg.pinv(gram, _ROUNDING, hermitian=True)
            self._inverses[which] = inverse
        return self._inverses[which]


def sums(joined: Joined, pairs: Sequence[Pair] = (), sample: Array | None = None) -> Sums:
    """Return the moments of every table and of ``pairs``, over all tokens or the ``sample`` (places), in one pass.

    Rows near the mean keep the digits of the sums. Memory: a d×d matrix of float64 for each table and pair, and a block
    of rows of each table.
    """
    every, count = range(len(joined.tables)), joined.count if sample is None else len(sample)
    some = np.unique(np.linspace(0, joined.count - 1, min(joined.count, joined.block_rows, 1024)).astype(int))
    about = [some] if sample is None else [sample[part] for part in joined.parts(count)]
    centres = [_mean(joined, which, about) for which in every]
    widths = [table.width for table in joined.tables]
    rests, grams = [np.zeros(width) for width in widths], [np.zeros((width, width)) for width in widths]
    crosses = {pair: np.zeros((widths[pair[0]], widths[pair[1]])) for pair in pairs}
    energies = [np.zeros(count if sample is not None else 0) for _ in every]
    product = np.empty((max(widths), max(widths)), np.float32)  # new memory for each product would cost its page faults
    for part in joined.parts(count, BLOCKS_AT_ONCE):
        places = np.arange(part.start, part.stop) if sample is None else sample[part]
        rows = [joined.take(which, places) for which in every]
        for which in every:
            rows[which] -= centres[which]
            rests[which] += rows[which].sum(axis=0, dtype=np.float64)
            grams[which] += _product(rows[which], rows[which], product)
            if sample is not None:
                energies[which][part] = np.einsum("ij,ij->i", rows[which], rows[which])
        for (a, b), cross in crosses.items():
            cross += _product(rows[a], rows[b], product)
        del rows  # before the next are read
    for which in every:
        grams[which] -= np.outer(rests[which], rests[which]) / count
    for (a, b), cross in crosses.items():
        cross -= np.outer(rests[a], rests[b]) / count
    means = [(centres[which] + rests[which] / count).astype(np.float32) for which in every]
    return Sums(means, grams, crosses, energies)


def _mean(joined: Joined, which: int, parts: Sequence[Array]) -> Array:
    total = np.sum([joined.take(which, places).sum(axis=0, dtype=np.float64) for places in parts], axis=0)
    mean: Array = (total / sum(map(len, parts))).astype(np.float32)
    return mean


def _product(left: Array, right: Array, memory: Array) -> Array:
    """Return leftᵀ·right, (d, d'), in the first elements of ``memory``."""
    shape = left.shape[1], right.shape[1]
    product: Array = np.matmul(left.T, right, out=memory.reshape(-1)[: shape[0] * shape[1]].reshape(shape))
    return product


def linear(joined: Joined, source: int, target: int, shuffle: Array | None = None, known: Sums | None = None) -> Linear:
    """Measure how well the rows of table ``source`` map to those of ``target``, with maps fitted on all tokens.

    ``shuffle``, a permutation of the tokens, pairs each with another, which gives the chance value. ``known`` are the
    `sums` of all tables.
    """
    pair, known = (source, target), known or sums(joined, [(source, target)])
    cross, every = known.crosses[pair], np.arange(joined.count)
    if shuffle is not None:
        cross = np.zeros_like(cross)
        for _, a, b in _rows(joined, pair, known, every, shuffle):
            cross += a.T @ b
    values = mapped_cosines(joined, pair, _maps(known, pair, cross), known, every, shuffle)
    cosines = {name: float(values[name].mean()) if name in values else None for name in MAPS}
    errors = {name: float(cosine.std()) / sqrt(joined.count) for name, cosine in values.items()}
    scale = float(np.linalg.norm(known.grams[source]) * np.linalg.norm(known.grams[target]))
    return Linear(cosines, (float(np.linalg.norm(cross)) ** 2 / scale if scale > 0 else 0.0), errors)


def _maps(known: Sums, pair: Pair, cross: Array) -> dict[str, Array | None]:
    """Return the maps that the moments determine by name, ``None`` for the identity."""
    maps: dict[str, Array | None] = {}
    if cross.shape[0] == cross.shape[1]:
        maps |= {"identity": None, "procrustes": _rotation(cross)}
    return maps | {"least squares": (known.inverse(pair[0]) @ cross).astype(np.float32)}


def mapped_cosines(
    joined: Joined, pair: Pair, maps: Mapping[str, Array | None], known: Sums, places: Array, order: Array | None = None
) -> dict[str, Array]:
    """Return the cosine of each mapped row at ``places`` with its target, or with that at ``places[order]``, by map."""
    values = {name: np.empty(len(places)) for name in maps}
    for part, a, b in _rows(joined, pair, known, places, np.arange(len(places)) if order is None else order):
        for name, matrix in maps.items():
            mapped = a if matrix is None else a @ matrix
            squares = (np.einsum("ij,ij->i", rows, rows).astype(np.float64) for rows in (mapped, b))
            lengths = np.sqrt(np.prod(list(squares), axis=0))
            products = np.einsum("ij,ij->i", mapped, b).astype(np.float64)
            cosines: Array = np.divide(products, lengths, out=np.zeros(len(products)), where=lengths > 0)
            values[name][part] = cosines
    return values


def expected(measure: str, tokens: int, width: int) -> float:
    """Return the value of ``measure`` for unrelated Gaussian tables (tokens, width). Tests compare permutations."""
    fraction = min(1.0, width / tokens)
    floors = {
        "identity": 0.0,
        "procrustes": 8 / (3 * pi) * sqrt(fraction),
        "least squares": sqrt(fraction),
        "cka": width / (tokens + width),
    }
    return floors[measure]


def _rows(joined: Joined, pair: Pair, known: Sums, places: Array, order: Array) -> Iterator[tuple[slice, Array, Array]]:
    """Yield centred rows of the source at ``places`` and of the target at ``places[order]``, block by block."""
    for part in joined.parts(len(places)):
        a, b = joined.take(pair[0], places[part]), joined.take(pair[1], places[order[part]])
        yield part, a - known.means[pair[0]], b - known.means[pair[1]]


def _rotation(cross: Array) -> Array:
    """Return the orthogonal matrix Q with the largest trace of Qᵀ·cross, (d, d) float32: its polar factor.

    C·(CᵀC)^-½ costs less than a singular value decomposition. Newton-Schulz steps remove its error: each squares it,
    and takes a quarter of the time of the rest. Matrices with nearly empty directions are decomposed.
    """
    energies, vectors = np.linalg.eigh(cross.T @ cross)
    if not energies[0] > _STEEP * energies[-1]:
        left, _, right = np.linalg.svd(cross)
        turned: Array = (left @ right).astype(np.float32)
        return turned
    rotation: Array = (((cross @ vectors) / np.sqrt(energies)) @ vectors.T).astype(np.float32)
    error = _INEXACT * energies[-1] / energies[0]
    while error > np.finfo(np.float32).eps:
        error *= 1.5 * error
        rotation = 1.5 * rotation - 0.5 * (rotation @ (rotation.T @ rotation))
    return rotation


# Map the tokens of a table on its first two principal directions, from one d×d sum. Imports numpy.


def plane(
    table: Table, colours: Mapping[str, Array] | None = None, title: str = "Map", first: Array | None = None
) -> Section | None:
    """Return the map of at most `POINTS` tokens of a table on its first two principal directions, columns centred.

    ``colours`` maps a label to numbers by row (rows,), such as frequencies or differences, the most important first.
    The row norms follow. Up to half of the tokens are rows marked in ``first`` (rows,). Returns ``None`` if fewer than
    three rows have a direction.
    """
    joined = directed_rows(table)
    if joined.count < FEWEST:
        return None
    seen = sums(joined)
    energies, directions = np.linalg.eigh(seen.grams[0])
    energies = np.clip(energies[::-1], 0, None)
    chosen = _chosen(joined.count, None if first is None else first[joined.numbers[0]])
    rows = joined.take(0, chosen)
    spots = (rows - seen.means[0]) @ directions[:, ::-1][:, :2]
    series = {"plane_x": spots[:, 0], "plane_y": spots[:, -1]}
    for label, values in (colours or {}).items():
        series[f"plane_colour {label}"] = values[joined.numbers[0][chosen]]
    series["plane_colour row norm"] = np.linalg.norm(rows, axis=1)
    rounded = {name: tuple(float(f"{value:.5g}") for value in points) for name, points in series.items()}
    detail = {"table": table.name, "tokens": joined.count, "tokens_shown": len(chosen)}
    measures = (_spread(energies, joined.count, table.width),)
    share = energies[:2].sum() / energies.sum() if energies.sum() > 0 else 0.0
    return Section(
        title, f"The map shows {share:.0%} of the variance of the rows of {table.name}.", measures, rounded, detail
    )


def _chosen(count: int, first: Array | None) -> Array:
    """Return the places to show, ascending: all, or `POINTS` spread evenly, half of them marked in ``first``."""
    if count <= POINTS:
        return np.arange(count)
    if first is None or not first.any():
        return _spread_over(np.arange(count), POINTS)
    chosen = _spread_over(np.flatnonzero(first), POINTS // 2)
    return np.union1d(chosen, _spread_over(np.setdiff1d(np.arange(count), chosen), POINTS - len(chosen)))


def _spread_over(places: Array, most: int) -> Array:
    spread: Array = places[np.linspace(0, len(places) - 1, min(most, len(places))).astype(int)]
    return spread


def _spread(energies: Array, rows: int, width: int) -> Measure:
    """Return the participation ratio over the width. The floor is one direction, the ceiling a Gaussian table."""
    squares = float(np.square(energies).sum())
    value = float(energies.sum()) ** 2 / squares / width if squares > 0 else None
    says = "participation ratio over width; 1 if all directions are used equally. The ceiling is a Gaussian table"
    return Measure("directions used", value, 1 / width, rows / (rows + width), rows, "share of width", says)
