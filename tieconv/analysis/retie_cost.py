"""The cost of re-tying for each survivor: a certified bound if the weights alone prove one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import sqrt

import numpy as np

from tieconv.analysis.relation import Related
from tieconv.analysis.subject import Final, Subject
from tieconv.analysis.tables import Array, Table, ranges, spans
from tieconv.checkpoint.results.analysis import Kinship, Measure
from tieconv.checkpoint.value_type import record
from tieconv.inspection.config_values import RELEASES
from tieconv.text import shown

REFUSED = frozenset(
    {Kinship.INDEPENDENT, Kinship.PARTLY_EQUAL, Kinship.UNKNOWN, Kinship.ROW_SUBSET, Kinship.ROW_PERMUTATION}
)
"""Classes in which one table cannot replace the other."""

MAPPED = frozenset({Kinship.ORTHOGONAL, Kinship.SPD, Kinship.LINEAR})
"""Classes in which a matrix that no norm can hold maps one table to the other."""

_NATS = "nats/token"

_LISTED = 8


@record
class Costs:
    """The cost of each survivor.

    ``certified`` holds the bound on the KL by survivor, ``None`` if the weights prove none. ``head`` is the change of
    the head if the embedding survives. ``free`` says that a re-tie changes nothing. ``uncovered`` lists, as text, the
    ids that the certificate of a surviving head does not cover.
    """

    certified: dict[str, float | None]
    head: Bound | None
    measures: tuple[Measure, ...]
    free: bool = False
    uncovered: str = ""


def costs(subject: Subject, related: Related) -> Costs:
    """Return the cost of each survivor. Reads both tables about six times if they differ and may be re-tied."""
    if subject.flip.taken_up:
        return _free("the tied class multiplies its logits by the factor itself")
    if subject.flip.barred:
        return Costs({}, None, ())
    third = subject.flip.third
    if related.kind in (Kinship.ALIAS, Kinship.BIT_EQUAL) and not third:
        return _free("the tables are equal")
    if related.kind in REFUSED | MAPPED or subject.head is None or not one_shape(subject):
        return Costs({}, None, ())
    if third:
        why = (
            f"no bound from the weights: a re-tie would also replace {shown(third)}, which differs; measure with --text"
        )
        return Costs({"embed": None, "head": None}, None, (_kl("embed", None, why), _kl("head", None, why)))
    head_bound = _head_change(subject, related)
    rows, why = _unread(subject, related)
    certified = {
        "embed": head_bound.kl if head_bound and head_bound.finite else None,
        "head": None if why else 0.0,
        "mean": None,
    }
    uncovered = "" if why else shown_ranges(rows)
    head = _kl("head", None, _input(why)) if why else _kl("head", 0.0, f"proved for {scope(uncovered)}", len(rows))
    measures = (*_embed_measures(head_bound, subject.withheld), head, _kl("mean", None, _input("")))
    return Costs(certified, head_bound, measures, uncovered=uncovered)


def one_shape(subject: Subject) -> bool:
    """Return whether both tables have the same number of rows, as a tied table must."""
    return subject.output.rows == subject.embed.rows


def _free(says: str) -> Costs:
    certified = dict.fromkeys(("embed", "head", "mean"), 0.0)
    return Costs({**certified}, None, tuple(_kl(name, 0.0, says) for name in certified), free=True)


def _kl(survivor: str, bound: float | None, says: str, n: int | None = None) -> Measure:
    return Measure(f"KL bound, {survivor} survives", bound, n=n, unit=_NATS, says=says)


def _head_change(subject: Subject, related: Related) -> Bound | None:
    if subject.final is None or subject.head is None:
        return None
    used = subject.used
    if used is not None:  # a zero row has the logit 0, so it has a probability even if no token uses it
        used = used | (related.moments.norms[1] == 0)
    return bound(Change(subject.embed, subject.head, subject.final), used)


def _unread(subject: Subject, related: Related) -> tuple[Array, str]:
    """Return the rows that differ, and why an input may read one of them; empty if no input does.

    Between two types a row also differs if it is equal only after rounding.
    """
    moments = related.moments
    rows = np.flatnonzero(moments.unequal | (moments.distances != 0) if moments.cast else moments.unequal)
    tokens = subject.tokens
    if tokens is None:
        return rows, subject.unlisted or "tieconv does not know which ids have a token"
    if tokens.used(subject.output.rows)[rows].any():
        return rows, "some of these rows have a token"
    if tokens.possible(subject.output.rows)[rows].any():
        return rows, "transformers may give these ids to tokens that the vocabulary lacks"
    fed = sorted(subject.fed & set(map(int, rows)))
    if fed:
        return rows, f"the model reads the id {fed[0]} with every text"
    return rows, subject.unfed or tokens.undecided


def _embed_measures(head_bound: Bound | None, withheld: str) -> tuple[Measure, ...]:
    if head_bound is None:
        return (_kl("embed", None, f"no bound: {withheld}; measure with --text"),)
    if not head_bound.finite:
        return (_kl("embed", None, "no bound: a table or the last norm holds NaN or infinity"),)
    every = "proved for every input and token"
    random = (
        "for random hidden states and equally likely tokens. Right for rounding; up to 10 times too low if the head "
        "was trained further"
    )
    return (
        _kl("embed", head_bound.kl, "proved for every input"),
        Measure("log-probability bound, embed survives", head_bound.log_p, unit="nats", says=every),
        Measure("KL estimate, embed survives", head_bound.estimate, unit=_NATS, says=random),
    )


def _input(why: str) -> str:
    reason = f" ({why})" if why else ""
    return f"no bound from the weights: input rows change{reason}, and so does every layer; measure with --text"


def scope(uncovered: str) -> str:
    """Name the inputs that no change of the input rows ``uncovered`` affects."""
    releases = f"{', '.join(RELEASES[:-1])} and {RELEASES[-1]}"
    return (
        f"every text that this model's tokenizer files encode (transformers {releases}). It does not cover ids that "
        f"you pass, generate or add later: {uncovered}"
    )


def shown_ranges(rows: Array) -> str:
    """Return row numbers as text, at most eight ranges: ``3, 148-159``."""
    listed = ranges(rows, len(rows))
    texts = [f"{first}" if first + 1 == end else f"{first}-{end - 1}" for first, end in listed[:_LISTED]]
    return ", ".join(texts) + (f" and {len(listed) - _LISTED:,} more ranges" if len(listed) > _LISTED else "")


# Bound and estimate the change of the probabilities if U' replaces the head U, from the weights alone.
#
# Δ = U' − U and D = Δ·diag(γ). For every hidden state x̂ with ‖x̂‖ ≤ √d the logits change by δ_v = s·(D_v·x̂ +
# Δ_v·β). The softmax ignores a shift that all δ_v share, so only their range counts. A ball of radius r around the
# rows of D gives: range ≤ 2·s·√d·r + s·range_v(Δ_v·β). Then max|Δ log p| ≤ range and, by Hoeffding's lemma, KL ≤
# range² / 8.


@record
class Bound:
    """``kl`` (nats a token) and ``log_p`` (largest change of a log-probability) hold for every input.

    ``estimate`` is the mean KL for random hidden states and equally likely tokens. It is right for rounding noise. It
    is up to 10 times too low for a head that was trained further.
    """

    kl: float
    log_p: float
    estimate: float

    @property
    def finite(self) -> bool:
        """Whether the bound is finite. One NaN or infinity in a table or in the norm makes it infinite."""
        return bool(np.isfinite(self.kl))


@record
class Change:
    """The rows of U' − U, with U' at ``share`` of the way from U to E."""

    embed: Table
    head: Table
    final: Final
    share: float = 1.0

    @property
    def rows(self) -> int:
        return min(self.embed.rows, self.head.rows)

    def raw(self) -> Iterator[Array]:
        """Yield Δ in blocks of rows."""
        for start, stop in spans(self.rows, self.embed.width):
            yield self.share * (self.embed.values(start, stop) - self.head.values(start, stop))

    def seen(self) -> Iterator[Array]:
        """Yield D in blocks of rows."""
        for block in self.raw():
            yield block * self.final.gains


@np.errstate(all="ignore")  # values that are not finite make the bound infinite
def bound(change: Change, used: Array | None = None) -> Bound:
    """Return the bound of a change of the head. ``used`` (V,) marks the tokens of the estimate."""
    width, final = change.embed.width, change.final
    if final.capped:  # a cap does not commute with a common shift of the logits
        centre = np.zeros(width)
        radius = _farthest(change.seen, centre, np.empty((0, len(centre))))[0] * UP
    else:
        _, radius = enclosing_ball(change.seen, width)
    spread = _shift_range(change) if final.shift is not None else 0.0
    scale = abs(final.scale)
    reach = scale * (2 * sqrt(width) * radius + spread)
    reach = reach if np.isfinite(reach) else float("inf")
    return Bound(reach**2 / 8 * UP, reach * UP, scale**2 * _variance(change, used) / 2)


def _shift_range(change: Change) -> float:
    """Return the range of Δ_v·β, or twice the largest magnitude under a cap."""
    shift = change.final.shift
    low, high = np.inf, -np.inf
    for block in change.raw():
        values = block @ shift
        low, high = min(low, float(values.min())), max(high, float(values.max()))
    return 2 * max(abs(low), abs(high)) if change.final.capped else high - low


def _variance(change: Change, used: Array | None) -> float:
    """Return the mean of ‖D_v − D̄‖² over equally likely tokens."""
    sums, squares, count, start = np.zeros(change.embed.width), 0.0, 0, 0
    for block in change.seen():
        rows = block if used is None else block[used[start : start + len(block)]]
        start += len(block)
        sums += rows.sum(0)
        squares += float(np.einsum("ij,ij->", rows, rows))
        count += len(rows)
    if not count:
        return 0.0
    mean = sums / count
    return max(squares / count - float(mean @ mean), 0.0)


# A small ball around all rows of a table, searched in a few passes, for the certified bounds.
#
# Any centre and the largest distance from it give a valid ball. The search only makes it smaller. It is the one by
# Bădoiu and Clarkson on a core set of far rows.

CORE = 1024
"""Rows of the core set."""

ROUNDS = 3
"""Passes over the table after the first."""

STEPS = 400
"""Steps of the search on the core set."""

UP = 1 + 1e-9
"""Factor that rounds a radius up, to cover the rounding of its float64 sums."""

Blocks = Callable[[], Iterator[Array]]
"""A function called once for each pass, which yields the rows in blocks (n, d) of float64."""


def enclosing_ball(blocks: Blocks, width: int) -> tuple[Array, float]:
    """Return (centre (d,), radius) of a ball that holds every row, not larger than the ball around the mean row."""
    mean, count = np.zeros(width), 0
    for block in blocks():
        mean += block.sum(0)
        count += len(block)
    centre = mean / max(count, 1)
    radius, core = _farthest(blocks, centre, np.empty((0, width)))
    if not np.isfinite(radius):
        return centre, np.inf
    best = centre, radius
    for _ in range(ROUNDS):
        centre = _search(core, centre)
        radius, core = _farthest(blocks, centre, core)
        if radius < best[1]:
            best = centre, radius
    return best[0], best[1] * UP


def _farthest(blocks: Blocks, centre: Array, core: Array) -> tuple[float, Array]:
    """Return the largest distance from ``centre``, and the core set with the farthest rows added."""
    largest = 0.0
    for block in blocks():
        distances = np.linalg.norm(block - centre, axis=1)
        if not len(distances):
            continue
        farthest = float(distances.max())
        largest = max(largest, farthest) if np.isfinite(farthest) else np.inf  # NaN compares as false
        core = np.concatenate([core, block[np.argsort(distances)[-CORE:]]])
        core = core[np.argsort(np.linalg.norm(core - centre, axis=1))[-CORE:]]
    return largest, core


def _search(core: Array, centre: Array) -> Array:
    """Move the centre towards the farthest row in shorter and shorter steps."""
    for step in range(1, STEPS + 1):
        far = core[np.linalg.norm(core - centre, axis=1).argmax()]
        centre = centre + (far - centre) / (step + 1)
    return centre


STATES = 128
"""Number of random hidden states in the estimate."""


def zero_mass(table: Table, final: Final, bias: Array | None, zero: Array) -> tuple[float, float]:
    """Return (mean, standard error) of the probability of the rows marked in ``zero``.

    The hidden states are random directions of the norm's length. Real hidden states may raise or lower all other logits
    together, so the true figure needs a text.
    """
    states = np.random.default_rng(0).standard_normal((table.width, STATES))
    states *= np.sqrt(table.width) / np.linalg.norm(states, axis=0)
    hidden = states * final.gains[:, None]
    if final.shift is not None:
        hidden += final.shift[:, None]
    hidden = (final.scale * hidden).astype("f4")
    whole, part = np.full(STATES, -np.inf), np.full(STATES, -np.inf)
    for start, stop in spans(table.rows, table.width):
        logits = np.nan_to_num(table.values(start, stop)).astype("f4") @ hidden
        if final.capped:
            logits = final.cap * np.tanh(logits / final.cap)
        if bias is not None:
            logits += bias[start:stop, None]
        whole = np.logaddexp(whole, np.logaddexp.reduce(logits.astype("f8"), axis=0))
        marked = logits[zero[start:stop]].astype("f8")
        if len(marked):
            part = np.logaddexp(part, np.logaddexp.reduce(marked, axis=0))
    share = np.exp(part - whole)
    return float(share.mean()), float(share.std(ddof=1) / np.sqrt(STATES))
