"""Compute the d × d moments EᵀE, UᵀU and EᵀU in one streaming pass. Memory: three such matrices for any V."""

from __future__ import annotations

import numpy as np

from tieconv.analysis.model.tables import Array, Table, spans
from tieconv.checkpoint.value_type import record

GEMM = 1 << 22
"""Elements of a block that is multiplied at once (16 MiB as float32)."""


WIDEST = 1 << 14
"""The most columns for moments. A d × d matrix of this width takes 2 GiB."""


@record
class Grams:
    """Centred second moments over ``rows`` rows, float64: ``ee``, ``uu`` and ``eu`` (d, d), and the mean rows."""

    rows: int
    ee: Array
    uu: Array
    eu: Array
    means: tuple[Array, Array]

    @property
    def width(self) -> int:
        return len(self.ee)


def gram(embed: Table, head: Table, finite: Array, means: tuple[Array, Array]) -> Grams:
    """Return both tables' moments about the given means, over the rows that are ``finite``.

    Centring before multiplying keeps digits that a large common vector would lose. Products of 16-bit values are summed
    in float32 inside a block and in float64 across blocks, others always in float64.
    """
    width, short = embed.width, max(embed.form.width, head.form.width) == 2
    totals = [np.zeros((width, width)) for _ in range(3)]
    for start, stop in spans(len(finite), width, GEMM):
        used = finite[start:stop]
        e, u = embed.values(start, stop)[used] - means[0], head.values(start, stop)[used] - means[1]
        if short:
            e, u = e.astype("f4"), u.astype("f4")
        for total, (left, right) in zip(totals, ((e, e), (u, u), (e, u)), strict=True):
            total += left.T @ right
    return Grams(int(np.count_nonzero(finite)), totals[0], totals[1], totals[2], means)


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
    for start, stop in spans(table.rows, table.width, GEMM):
        block = table.values(start, stop)[-start % step :: step]
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
