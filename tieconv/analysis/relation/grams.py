"""Compute the d × d moments EᵀE and EᵀU in one streaming pass. Memory: two such matrices for any V."""

from __future__ import annotations

import numpy as np

from tieconv.analysis.model.moments import Moments
from tieconv.analysis.model.tables import Array, Table, spans
from tieconv.checkpoint.value_type import record

GEMM = 1 << 22
"""Elements of a block that is multiplied at once (16 MiB as float32)."""


WIDEST = 1 << 14
"""The most columns for moments. A d × d matrix of this width takes 2 GiB."""


@record
class Grams:
    """Centred second moments over ``rows`` rows, float64: ``ee`` and ``eu`` (d, d), and the mean rows.

    ``whole`` is ‖U − 1·meanᵀ‖². ``error`` is a bound γ. No entry of EᵀE is off by more than γ·|E|ᵀ|E|. No entry of
    EᵀU is off by more than γ·|E|ᵀ|U|.
    """

    rows: int
    ee: Array
    eu: Array
    whole: float
    means: tuple[Array, Array]
    error: float

    @property
    def width(self) -> int:
        return len(self.ee)


def gram(embed: Table, head: Table, moments: Moments, *, single: bool) -> Grams:
    """Return the moments about the mean rows, over the rows that are finite in both tables.

    Centring before multiplying keeps digits that a large common vector would lose. With ``single``, the mean rows are
    rounded to float32. Products are summed in float32 inside a block and in float64 across blocks. Let u = 2⁻²⁴. In
    any order, n rounded products add up to an error of at most n·u/(1 − n·u) of their magnitudes. This is §3.1 of
    Higham's Accuracy and Stability of Numerical Algorithms. The rounding of both factors adds 2·u.
    """
    width, finite, means = embed.width, moments.finite, moments.means
    ee, eu, whole = np.zeros((width, width)), np.zeros((width, width)), 0.0
    block = GEMM if embed.form.width == 2 else GEMM // 4  # fewer terms for values whose products float32 rounds
    for start, stop in spans(len(finite), width, block):
        used = finite[start:stop]
        e, u = _centred(embed, start, stop, used, means[0], single), _centred(head, start, stop, used, means[1], single)
        ee += e.T @ e
        eu += e.T @ u
        whole += float(np.einsum("ij,ij->i", u, u).sum(dtype="f8"))
    unit = 2.0**-24 if single else 2.0**-53
    terms = (min(block // width or 1, len(finite)) + 4) * unit
    return Grams(moments.count, ee, eu, whole, means, terms / (1 - terms))


def _centred(table: Table, start: int, stop: int, used: Array, mean: Array, single: bool) -> Array:
    """Return the used rows without their mean, as float32 or float64. float32 values are subtracted in float32."""
    rows = table.singles(start, stop) if single else table.values(start, stop)
    rows = rows if used.all() else rows[used]
    rows = rows if rows.flags.writeable else rows.copy()
    rows -= mean.astype(rows.dtype)
    return rows


@np.errstate(all="ignore")  # the code below checks for an overflow
def spectrum(table: Table, most: int = 1 << 14) -> tuple[Array, int]:
    """Return the singular values of the centred table, largest first, and the number of rows behind them.

    At most ``most`` evenly spread rows are used, and the values are scaled to all rows. A table wider than `WIDEST` has
    no values.
    """
    if table.width > WIDEST:
        return np.empty(0), 0
    step = max(-(-table.rows // most), 1)
    total, sums, count = np.zeros((table.width, table.width)), np.zeros(table.width), 0
    about: Array | None = None  # a row near the mean: centring keeps digits that a large common vector would lose
    chosen = np.arange(0, table.rows, step)
    for start, stop in spans(len(chosen), table.width, GEMM):
        block = table.pick(chosen[start:stop])
        block = block[np.isfinite(block).all(axis=1)]
        if about is None and len(block):
            about = block.mean(0)
        block = (block - (0.0 if about is None else about)).astype("f4")
        total += block.T @ block
        sums += block.sum(0, dtype="f8")
        count += len(block)
    total -= np.outer(sums, sums) / max(count, 1)
    if not np.isfinite(total).all():  # squares beyond the range of float32
        return np.empty(0), 0
    values = np.sqrt(np.clip(np.linalg.eigvalsh(total)[::-1], 0, None) * (table.rows / max(count, 1)))
    return values, count
