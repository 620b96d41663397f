"""The section *Rows*: padding, zeros, copies and tokens that look untrained."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from math import atanh, log, sqrt, tanh
from typing import TYPE_CHECKING

import numpy as np

from tieconv.analysis.alignment_measures import pearson, spearman
from tieconv.analysis.relation import Related
from tieconv.analysis.retie_cost import zero_mass
from tieconv.analysis.subject import Subject
from tieconv.analysis.tables import SQUARED, Array, Table, digests, duplicates, points, ranges, spans, twins
from tieconv.checkpoint.results.analysis import Kinship, Measure, Section
from tieconv.checkpoint.value_type import record, values_of
from tieconv.errors import SettingsError
from tieconv.sources.user_files import read_text
from tieconv.text import count, shown

if TYPE_CHECKING:
    from tieconv.analysis.retie_section import OnText

ROWS = "Rows"
LISTED = 20
_MASS = "probability of the rows of zeros"
_NO_TOKENIZER = "the model directory has no tokenizer.json, vocab.json or vocab.txt"


def rows_section(
    subject: Subject, both: tuple[Array, ...], related: Related | None, measured: OnText | None = None
) -> Section:
    """Return the section. ``both`` are ‖row‖ of each stored table.

    ``related`` is ``None`` for a tied model, ``measured`` is ``None`` without a text.
    """
    table, used, norms = subject.output, subject.used, both[-1]
    zero = norms == 0
    alike = twins(norms, table.width)
    groups = duplicates(digests(table, alike), alike)
    flagged, repeated = _flagged(subject, related, norms), float(sum(len(group) - 1 for group in groups))
    measures = [
        Measure("rows", float(table.rows), unit="rows"),
        _beyond(subject),
        *_zeros(subject, zero),
        *_zeros_measured(zero, measured),
        *_broken(norms),
        Measure("rows equal to an earlier one", repeated, n=table.rows, unit="rows"),
        _undertrained(flagged, used, subject),
        *_differing(related, used, subject),
    ]
    judged = flagged if flagged and flagged.distinct else None
    detail: dict[str, object] = {
        "zero_rows": ranges(np.flatnonzero(zero)),
        "duplicate_rows": groups[:LISTED],
        "tokenizer": subject.tokens.file if subject.tokens else None,
    }
    if used is not None and related is not None and related.moments.unequal.any():
        rows = np.flatnonzero(related.moments.unequal)
        detail["differing_rows_with_token"] = ranges(rows[used[rows]])
        detail["differing_rows_without_token"] = ranges(rows[~used[rows]])
    if used is not None:
        detail["rows_without_token"] = ranges(np.flatnonzero(~used))
    if judged:
        detail |= {"under_trained": list(_listed(subject, judged)), "indicator": judged.indicator}
    series = {"under_trained_score": points(np.sort(np.nan_to_num(judged.score, posinf=0.0)))} if judged else {}
    sentence = _sentence(subject, (zero, ~np.isfinite(norms)), groups, flagged, _share(measures))
    return Section(ROWS, sentence, tuple(measures), series, detail)


def _flagged(subject: Subject, related: Related | None, norms: Array) -> Flagged | None:
    if subject.tokens is None:
        return None
    if related is None or related.kind not in (Kinship.INDEPENDENT, Kinship.PARTLY_EQUAL, Kinship.UNKNOWN):
        return find(subject.output, norms, subject.tokens.used(subject.output.rows), output=True)
    return find(subject.embed, related.moments.norms[0], subject.tokens.used(subject.embed.rows), output=False)


def _beyond(subject: Subject) -> Measure:
    used, tokens = subject.used, subject.tokens
    if used is None or tokens is None:
        return Measure("rows without a token", None, unit="rows", says=_no_tokenizer(subject))
    rows = float(np.count_nonzero(~used))
    later = int(np.count_nonzero(tokens.possible(len(used)) & ~used))
    says = f"read from {tokens.file}"
    if later:
        says += f"; transformers may give {later:,} of them to tokens that the vocabulary lacks"
    if tokens.undecided:
        says += f"; more tokens are possible: {tokens.undecided}"
    return Measure("rows without a token", rows, n=len(used), unit="rows", says=says)


def _zeros(subject: Subject, zero: Array) -> Iterator[Measure]:
    rows = int(np.count_nonzero(zero))
    yield Measure("rows of zeros in the head", float(rows), n=len(zero), unit="rows")
    if not rows:
        return
    name, floor = _MASS, rows / len(zero)
    if subject.final is None:
        yield Measure(name, None, floor=floor, says="the norm before the head is unknown; measure with --text")
        return
    mass, error = zero_mass(subject.output, subject.final, subject.bias, zero)
    says = (
        f"± {error:.1g}, for random hidden states. Real hidden states may change all other logits together, so measure "
        "with --text. The floor is the number of rows of zeros divided by all rows"
    )
    yield Measure(name, mass, floor=floor, n=rows, says=says)


def _zeros_measured(zero: Array, measured: OnText | None) -> Iterator[Measure]:
    if measured is not None and zero.any():
        floor = float(np.mean(zero))
        yield Measure(f"measured {_MASS}", measured.zero_mass, floor=floor, n=measured.predicted)


def _broken(norms: Array) -> Iterator[Measure]:
    rows = float(np.count_nonzero(~np.isfinite(norms)))
    if rows:
        yield Measure("rows of the head with NaN or infinity", rows, n=len(norms), unit="rows")


def _no_tokenizer(subject: Subject) -> str:
    return subject.unlisted or _NO_TOKENIZER


def _undertrained(flagged: Flagged | None, used: Array | None, subject: Subject) -> Measure:
    name = "tokens that look untrained"
    if flagged is None:
        few = f"a comparison needs {REFERENCE} rows without a token"
        return Measure(name, None, unit="tokens", says=_no_tokenizer(subject) if used is None else few)
    if not flagged.distinct:
        says = f"the {flagged.indicator} does not separate the rows without a token from the others"
        return Measure(name, None, n=flagged.reference, unit="tokens", says=says)
    says = f"{flagged.indicator} at most {flagged.threshold:.3g}, as for 95 % of the rows without a token"
    return Measure(name, float(len(flagged.rows)), n=flagged.reference, unit="tokens", says=says)


def _differing(related: Related | None, used: Array | None, subject: Subject) -> Iterator[Measure]:
    if related is None or not related.moments.unequal.any():
        return
    rows = np.flatnonzero(related.moments.unequal)
    if used is None:
        yield Measure("differing rows without a token", None, n=len(rows), unit="rows", says=_no_tokenizer(subject))
        return
    yield Measure("differing rows without a token", float(np.count_nonzero(~used[rows])), n=len(rows), unit="rows")


def _share(measures: list[Measure]) -> str:
    """Return the probability of the rows of zeros as text, measured or estimated; empty if it is unknown."""
    values = {measure.name: measure.value for measure in measures}
    for name, source in ((f"measured {_MASS}", "measured on the text"), (_MASS, "estimated")):
        value = values.get(name)
        if value is not None:
            return f"{value:.2g}, {source}"
    return ""


def _listed(subject: Subject, flagged: Flagged) -> Iterator[dict[str, object]]:
    assert subject.tokens is not None
    for row in flagged.rows[:LISTED]:
        text = shown(subject.tokens.text.get(int(row), ""), 60)
        yield {"id": int(row), "token": text, "score": float(flagged.score[row])}


def _sentence(
    subject: Subject, marks: tuple[Array, Array], groups: list[list[int]], flagged: Flagged | None, share: str
) -> str:
    """Return the sentence. ``marks`` are the rows of zeros, and the rows that are not finite."""
    parts, (zero, broken), used = [], marks, subject.used
    if broken.any():
        parts.append(f"{count(int(np.count_nonzero(broken)), 'row')} of the head with NaN or infinity")
    if used is not None and not used.all():
        parts.append(f"{count(int(np.count_nonzero(~used)), 'row')} without a token")
    if zero.any():
        taken = f" ({share})" if share else ""
        parts.append(
            f"{count(int(np.count_nonzero(zero)), 'row')} of zeros: the logit is 0, so their tokens still get "
            f"probability{taken}"
        )
    if groups:
        parts.append(f"{count(sum(map(len, groups)), 'row')} in {count(len(groups), 'group')} of equal rows")
    if flagged and flagged.distinct and len(flagged.rows):
        parts.append(f"{count(len(flagged.rows), 'token')} that look as untrained as the rows without a token")
    sentence = "; ".join(parts) if parts else "no special rows"
    reason = _no_tokenizer(subject)
    unknown = f" Tokens were not compared: {reason}." if used is None else ""
    return f"{sentence[0].upper()}{sentence[1:]}.{unknown}"


_LINE = re.compile(r"(\d{1,9})\s*[,\t ]\s*(\d{1,18})")
_HEADER = re.compile(r"\s*[^-+.\d\s]")


def read_counts(path: str, rows: int) -> Array:
    """Return how often the token of each row occurs, (rows,). Rows that the file leaves out occur never.

    Each line has a token id and a count, with a comma, a tab or a space between them. The first line may be a header,
    which does not start like a number. Raises `SettingsError` for another line, for an id twice, and for an id without
    a row.
    """
    counts, seen = np.zeros(rows), np.zeros(rows, bool)
    for number, line in enumerate(read_text(path).splitlines(), 1):
        match = _LINE.fullmatch(line.strip())
        if match is None:
            if not line.strip() or (number == 1 and _HEADER.match(line)):
                continue
            raise _malformed(path, f"line {number} is not a token id and a count")
        row, count = int(match[1]), int(match[2])
        if row >= rows:
            raise _malformed(path, f"line {number} has the id {row:,}, but the table has {rows:,} rows")
        if seen[row]:
            raise _malformed(path, f"line {number} repeats the id {row:,}")
        counts[row], seen[row] = count, True
    return counts


def _malformed(path: str, why: str) -> SettingsError:
    problem = f"{shown(path)} does not hold counts of tokens: {why}"
    return SettingsError(problem, "write lines such as: 15,2048", "analyze.counts")


# Fit a line through values by token and the log frequency of the tokens in a text.

DISTINCT = 100
"""The fewest different tokens for a line through their frequencies."""


@record
class Line:
    """values ≈ slope·log p + start over the ``seen`` tokens of the text, in nats; ``None`` for too few tokens."""

    name: str
    slope: float | None
    start: float | None
    r2: float | None
    seen: int

    @property
    def measures(self) -> tuple[Measure, ...]:
        """Slope, R² and its floor, 1/(n − 1)."""
        if self.slope is None:
            says = f"the text has {self.seen} different tokens; a line needs {DISTINCT} with different frequencies"
            return (Measure(f"R², {self.name} from log p", None, n=self.seen, says=says),)
        says = "p is the frequency in the text; the counts of rare tokens are inexact, which lowers R²"
        floor = 1 / (self.seen - 1)
        return (
            Measure(f"slope, {self.name} on log p", self.slope, n=self.seen),
            Measure(f"R², {self.name} from log p", self.r2, floor=floor, ceiling=1.0, n=self.seen, says=says),
        )

    def to_dict(self) -> dict[str, object]:
        """Return the line as JSON values."""
        return values_of(self, "slope start r2 tokens=seen")


def line(name: str, values: Array, counts: Array) -> Line:
    """Return the least-squares line of ``values`` (V,) on log p. ``counts`` (V,) are the tokens of the text."""
    seen = np.flatnonzero((counts > 0) & np.isfinite(values))
    if len(seen) < DISTINCT or not np.ptp(counts[seen]):
        return Line(name, None, None, None, len(seen))
    log_p, fitted = np.log(counts[seen] / counts.sum()), values[seen]
    slope, start = np.polyfit(log_p, fitted, 1)
    r2 = float(np.corrcoef(log_p, fitted)[0, 1] ** 2) if np.ptp(fitted) else 0.0
    return Line(name, float(slope), float(start), r2, len(seen))


def by_frequency(rows: Mapping[str, Array], counts: Array) -> dict[str, tuple[float, ...]]:
    """Return the series ``log_p`` and each of ``rows`` (V,) for the tokens of the text, at most `POINTS` of them.

    Tokens are sorted from the rarest to the most frequent, then by id.
    """
    seen = np.flatnonzero(counts)
    seen = seen[np.argsort(counts[seen], kind="stable")]
    series = {"log_p": points(np.log(counts[seen] / counts.sum()))}
    return series | {name: points(values[seen]) for name, values in rows.items()}


# The section *Frequency*: how the lengths of rows follow the frequency of their tokens. Imports numpy.

FREQUENCY = "Frequency"
_NORMAL = 1.959964
"""Standard errors of a 95 % interval."""
_WIDER = {"Spearman": 1.03, "Pearson of log p": 1.0}
"""The standard error of Fisher's z, times √(n − 3). For ranks see Fieller, Hartley and Pearson 1957."""


def norm_frequency(norms: tuple[Array, ...], counts: Array) -> Section:
    """Return the section for ‖row‖ of each stored table and ``counts`` (V,) of tokens. It leaves out other tokens.

    Each correlation has the value of a permutation as its floor. Its interval is that of Fisher's z over the tokens.
    """
    names = ("input embedding", "output head") if len(norms) == 2 else ("tied table",)
    tables = {name: np.nan_to_num(rows, posinf=0.0) for name, rows in zip(names, norms, strict=True)}
    seen = np.flatnonzero(counts[: min(map(len, tables.values()))])
    if len(seen) < DISTINCT or not np.ptp(counts[seen]):
        says = f"The counts have {len(seen):,} tokens. A correlation needs {DISTINCT} with different frequencies."
        return Section(FREQUENCY, says, ())
    log_p = np.log(counts[seen]) - log(counts.sum())
    order = np.random.default_rng(0).permutation(len(seen))
    measures, intervals = [], {}
    for table, lengths in tables.items():
        for kind, measure in (("Spearman", spearman), ("Pearson of log p", pearson)):
            value, floor = measure(lengths[seen], log_p), measure(lengths[seen], log_p[order])
            name = f"{kind}, norm of the {table}"
            low, high = intervals[name] = _interval(value, _WIDER[kind] / sqrt(len(seen) - 3))
            says = f"95 % interval {low:.3f} to {high:.3f}, over tokens; the floor is of permuted tokens"
            measures.append(Measure(name, value, floor, 1.0, len(seen), "correlation", says))
    series = {f"norm of the {table}_at_log_p": lengths for table, lengths in tables.items()}
    sentence = _frequency_sentence(tables, {measure.name: measure.value or 0.0 for measure in measures}, intervals)
    detail = {"tokens": len(seen), "occurrences": int(counts.sum()), "interval": intervals}
    return Section(FREQUENCY, sentence, tuple(measures), by_frequency(series, counts), detail)


def _interval(value: float, error: float) -> list[float]:
    """Return the 95 % interval of a correlation. ``error`` is the standard error of its Fisher z."""
    z = atanh(max(-1 + 1e-15, min(1 - 1e-15, value)))
    return [tanh(z - _NORMAL * error), tanh(z + _NORMAL * error)]


def _frequency_sentence(
    tables: Mapping[str, Array], values: Mapping[str, float], intervals: Mapping[str, list[float]]
) -> str:
    parts = []
    for table in tables:
        name = f"Spearman, norm of the {table}"
        low, high = intervals[name]
        longer = "longer" if low > 0 else "shorter" if high < 0 else "neither longer nor shorter"
        parts.append(f"Frequent tokens have {longer} rows in the {table} (rank correlation {values[name]:.2f}).")
    return " ".join(parts)


# Find tokens that look untrained. The indicator depends on whether the table is input- or output-shaped.
#
# In an output table every token changes every row, so rows that were never the answer become similar. The indicator
# is the cosine distance to the mean of the unused rows. In an independent input table a row changes only when the
# model reads its token. The indicator is the length of the row (Land and Bartolo 2024, arXiv 2405.05417). The
# relation of the stored tables decides, not the config: an untied copy of a tied table is still output-shaped.

REFERENCE = 8
"""The fewest unused rows for a comparison."""

HALF = 0.5
"""Share of flagged tokens above which the indicator says nothing about this table."""

QUANTILE = 0.95
"""Share of the unused rows that the threshold keeps."""


@record
class Flagged:
    """``score`` of each row (V,), small for rows that look untrained, and the tokens at or below ``threshold``."""

    indicator: str
    score: Array
    threshold: float
    rows: Array
    reference: int
    tokens: int

    @property
    def distinct(self) -> bool:
        """Whether the indicator separates the unused rows. Otherwise it flags about `QUANTILE` of all tokens."""
        return len(self.rows) <= HALF * self.tokens


def find(table: Table, norms: Array, used: Array, *, output: bool) -> Flagged | None:
    """Return the tokens whose rows look like unused rows, or ``None`` if there are too few unused rows."""
    unused = np.flatnonzero(~used & (norms < SQUARED[1]))
    if len(unused) < REFERENCE:
        return None
    score, own = _output_score(table, norms, unused) if output else (norms, norms[unused])
    threshold = float(np.quantile(own, QUANTILE))
    rows = np.flatnonzero(used & (score <= threshold))
    name = "distance to the unused rows" if output else "length of the row"
    return Flagged(name, score, threshold, rows[np.argsort(score[rows], kind="stable")], len(unused), int(used.sum()))


def _output_score(table: Table, norms: Array, unused: Array) -> tuple[Array, Array]:
    """Return the distance of each row to the mean unused row, and of each unused row to the others' mean.

    The distance is the cosine distance, or the Euclidean one if the unused rows are zero and have no direction.
    """
    alive = unused[norms[unused] > SQUARED[0]]
    by_cosine = len(alive) >= REFERENCE
    reference = table.pick(alive if by_cosine else unused)
    total, count = reference.sum(0), len(reference)
    score = np.zeros(table.rows)
    for start, stop in spans(table.rows, table.width):
        score[start:stop] = _distance(table.values(start, stop), total / count, by_cosine)
    own = [_distance(row[None], (total - row) / (count - 1), by_cosine)[0] for row in reference]
    return score, np.array(own)


def _distance(rows: Array, mean: Array, by_cosine: bool) -> Array:
    with np.errstate(all="ignore"):
        if not by_cosine:
            distances: Array = np.linalg.norm(rows - mean, axis=1)
        else:
            distances = 1 - rows @ mean / (np.linalg.norm(rows, axis=1) * np.linalg.norm(mean))
    return np.nan_to_num(distances, nan=np.inf)
