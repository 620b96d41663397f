"""The section *Frequency*: how the lengths of rows follow the frequency of their tokens. Imports numpy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import atanh, log, sqrt, tanh

import numpy as np

from tieconv.analysis.alignment.local import pearson, spearman
from tieconv.analysis.model.moments import lengths
from tieconv.analysis.model.subject import Subject
from tieconv.analysis.model.tables import Array
from tieconv.analysis.relation.related import Related
from tieconv.analysis.rows.frequency import DISTINCT, by_frequency
from tieconv.checkpoint.results.analysis import Detail, Measure, Section
from tieconv.checkpoint.value_type import record

TITLE = "Frequency"
_NORMAL = 1.959964
"""Standard errors of a 95 % interval."""
_WIDER = {"Spearman": 1.03, "Pearson of log p": 1.0}
"""The standard error of Fisher's z, times √(n − 3). For ranks see Fieller, Hartley and Pearson 1957."""


@record
class FrequencyDetail(Detail):
    """The number of tokens that occur, the sum of their counts, and the 95 % interval of each correlation."""

    tokens: int
    occurrences: int
    interval: dict[str, list[float]]


def norm_frequency(subject: Subject, related: Related | None, counts: Array) -> Section:
    """Return the section for ``counts`` (V,) of tokens; rows of tokens that do not occur are left out.

    Each correlation has the value of a permutation as its floor. Its interval is that of Fisher's z over the tokens.
    """
    tables = _norms(subject, related)
    seen = np.flatnonzero(counts[: min(map(len, tables.values()))])
    if len(seen) < DISTINCT or not np.ptp(counts[seen]):
        says = f"The counts have {len(seen):,} tokens. A correlation needs {DISTINCT} with different frequencies."
        return Section(TITLE, says, ())
    log_p = np.log(counts[seen]) - log(counts.sum())
    order = np.random.default_rng(0).permutation(len(seen))
    measures, intervals = [], {}
    for table, norms in tables.items():
        for kind, value, floor in _correlations(norms[seen], log_p, order):
            name = f"{kind}, norm of the {table}"
            low, high = intervals[name] = _interval(value, _WIDER[kind] / sqrt(len(seen) - 3))
            says = f"95 % interval {low:.3f} to {high:.3f}, over tokens; the floor is of permuted tokens"
            measures.append(Measure(name, value, floor, 1.0, len(seen), "correlation", says))
    series = {f"norm of the {table}_at_log_p": norms for table, norms in tables.items()}
    return Section(
        TITLE,
        _sentence(tables, {measure.name: measure.value or 0.0 for measure in measures}, intervals),
        tuple(measures),
        by_frequency(series, counts),
        FrequencyDetail(len(seen), int(counts.sum()), intervals),
    )


def _norms(subject: Subject, related: Related | None) -> Mapping[str, Array]:
    """Return the row norms of each table, without those that are not finite."""
    if related is not None:
        both = dict(zip(("input embedding", "output head"), related.moments.norms, strict=True))
    else:
        both = {"tied table": lengths(subject.embed)}
    return {name: np.nan_to_num(norms, posinf=0.0) for name, norms in both.items()}


def _correlations(norms: Array, log_p: Array, order: Array) -> Iterator[tuple[str, float, float]]:
    for kind, measure in (("Spearman", spearman), ("Pearson of log p", pearson)):
        yield kind, measure(norms, log_p), measure(norms, log_p[order])


def _interval(value: float, error: float) -> list[float]:
    """Return the 95 % interval of a correlation. ``error`` is the standard error of its Fisher z."""
    z = atanh(max(-1 + 1e-15, min(1 - 1e-15, value)))
    return [tanh(z - _NORMAL * error), tanh(z + _NORMAL * error)]


def _sentence(tables: Mapping[str, Array], values: Mapping[str, float], intervals: Mapping[str, list[float]]) -> str:
    parts = []
    for table in tables:
        name = f"Spearman, norm of the {table}"
        low, high = intervals[name]
        longer = "longer" if low > 0 else "shorter" if high < 0 else "neither longer nor shorter"
        parts.append(f"Frequent tokens have {longer} rows in the {table} (rank correlation {values[name]:.2f}).")
    return " ".join(parts)
