"""Bound and estimate the change of the probabilities if U' replaces the head U, from the weights alone.

Δ = U' − U and D = Δ·diag(γ). For every hidden state x̂ with ‖x̂‖ ≤ √d the logits change by δ_v = s·(D_v·x̂ + Δ_v·β).
The softmax ignores a shift that all δ_v share, so only their range counts. A ball of radius r around the rows of D
gives: range ≤ 2·s·√d·r + s·range_v(Δ_v·β). Then max|Δ log p| ≤ range and, by Hoeffding's lemma, KL ≤ range² / 8.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import sqrt

import numpy as np

from tieconv.analysis.model.last_norm import Final
from tieconv.analysis.model.tables import Array, Table, spans
from tieconv.analysis.retie_cost.ball import UP, enclosing_ball, radius_about
from tieconv.checkpoint.value_type import record


@record
class Bound:
    """``kl`` (nats a token) and ``log_p`` (largest change of a log-probability) hold for every input.

    ``estimate`` is the mean KL for random hidden states and equally likely tokens. It is right for rounding noise. It
    is up to 10 times too low for a head that was trained further.
    """

    kl: float
    log_p: float
    estimate: float
    radius: float

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
        radius = radius_about(change.seen, np.zeros(width))
    else:
        _, radius = enclosing_ball(change.seen, width)
    spread = _shift_range(change) if final.shift is not None else 0.0
    scale = abs(final.scale)
    reach = scale * (2 * sqrt(width) * radius + spread)
    reach = reach if np.isfinite(reach) else float("inf")
    return Bound(reach**2 / 8 * UP, reach * UP, scale**2 * _variance(change, used) / 2, radius)


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
