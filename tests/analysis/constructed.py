"""Random pairs of tables whose relation is known because it was constructed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.inspection.stored import Memory
from tieconv.analysis.tables import Table, open_table
from tieconv.checkpoint.results.analysis import Kinship
from tieconv.inspection.numeric.bits import FORMATS, encode

Array = npt.NDArray[Any]
Rng = np.random.Generator


@dataclass(frozen=True)
class Case:
    """Two tables and the class that made them; ``note`` says how."""

    truth: Kinship
    embed: Table
    head: Table
    note: str


def table(values: Array, dtype: str, memory: Memory | None = None, name: str = "table") -> Table:
    """Values rounded to ``dtype``, as a stored table."""
    memory = memory or Memory()
    form = FORMATS[dtype]
    bits = encode(np.ascontiguousarray(values, "f8").reshape(-1), form).reshape(values.shape)
    return open_table(memory, memory.store(name, dtype, bits))


def embedding(rng: Rng, rows: int, width: int) -> Array:
    """A table as trained ones are: a power-law spectrum, a common vector, rows of unlike length."""
    spectrum = (1 + np.arange(width)) ** -rng.uniform(0.0, 0.7)
    basis, _ = np.linalg.qr(rng.standard_normal((width, width)))
    values = rng.standard_normal((rows, width)) * spectrum @ basis
    values = values / values.std() * np.exp(rng.normal(0, 0.3, (rows, 1)))
    return (values + rng.uniform(0, 2) * rng.standard_normal(width)) * 10 ** rng.uniform(-2, 0)


def orthogonal(rng: Rng, width: int) -> Array:
    return np.linalg.qr(rng.standard_normal((width, width)))[0]


def _gauge(e: Array, rng: Rng) -> Array:
    return e + e.std() * rng.uniform(0.2, 3) * rng.standard_normal(e.shape[1])


def _scalar(e: Array, rng: Rng) -> Array:
    return e * rng.choice([rng.uniform(0.05, 0.8), rng.uniform(1.2, 20), -1.0])


def _diagonal(e: Array, rng: Rng) -> Array:
    return e * np.exp(rng.normal(0, rng.uniform(0.1, 1), e.shape[1])) * rng.uniform(0.3, 5)


def _orthogonal(e: Array, rng: Rng) -> Array:
    return rng.uniform(0.3, 3) * e @ orthogonal(rng, e.shape[1])


def _spd(e: Array, rng: Rng) -> Array:
    turn = orthogonal(rng, e.shape[1])
    return e @ (turn * np.exp(rng.normal(0, 0.5, e.shape[1]))) @ turn.T


def _linear(e: Array, rng: Rng) -> Array:
    sizes = np.exp(rng.normal(0, 0.5, e.shape[1]))
    return e @ (orthogonal(rng, e.shape[1]) * sizes) @ orthogonal(rng, e.shape[1])


def _drift(e: Array, rng: Rng) -> Array:
    """As fine-tuning leaves it: a few directions shared by all rows, and noise."""
    rank, size = int(rng.integers(1, 6)), rng.uniform(0.03, 0.4)
    shared = rng.standard_normal((len(e), rank)) @ rng.standard_normal((rank, e.shape[1]))
    moved = shared / shared.std() + rng.standard_normal(e.shape)
    return e + size * (e - e.mean(0)).std() * moved / moved.std()


def _row_scaled(e: Array, rng: Rng) -> Array:
    return e * np.exp(rng.normal(0, rng.uniform(0.1, 1), (len(e), 1)))


def _low_rank(e: Array, rng: Rng) -> Array:
    """As an adapter that was merged into the head leaves it."""
    rank = int(rng.integers(1, e.shape[1] // 4 + 1))
    moved = rng.standard_normal((len(e), rank)) @ rng.standard_normal((rank, e.shape[1]))
    return e + rng.uniform(0.05, 2) * e.std() * moved / moved.std()


def _partly_equal(e: Array, rng: Rng) -> Array:
    other = embedding(rng, *e.shape)
    kept = rng.choice(len(e), int(len(e) * rng.uniform(0.15, 0.4)), replace=False)
    other[kept] = e[kept]
    return other


def _independent(e: Array, rng: Rng) -> Array:
    return embedding(rng, *e.shape)


MAPS: dict[Kinship, Callable[[Array, Rng], Array]] = {
    Kinship.GAUGE: _gauge,
    Kinship.SCALAR: _scalar,
    Kinship.DIAGONAL: _diagonal,
    Kinship.ORTHOGONAL: _orthogonal,
    Kinship.SPD: _spd,
    Kinship.LINEAR: _linear,
    Kinship.DRIFT: _drift,
    Kinship.INDEPENDENT: _independent,
    Kinship.ROW_SCALED: _row_scaled,
    Kinship.LOW_RANK: _low_rank,
    Kinship.PARTLY_EQUAL: _partly_equal,
}


def _rows(truth: Kinship, e: Array, rng: Rng) -> Array:
    rows = len(e)
    if truth is Kinship.BIT_EQUAL:
        return e
    if truth is Kinship.ROW_PERMUTATION:
        return e[rng.permutation(rows)]
    if truth is Kinship.ROW_SUBSET:
        kept = np.sort(rng.choice(rows, int(rows * rng.uniform(0.5, 0.95)), replace=False))
        return e[: len(kept)] if rng.random() < 0.5 else e[rng.permutation(kept)]
    other = e.copy()
    chosen = rng.choice(rows, int(rng.integers(1, max(rows // 3, 2))), replace=False)
    other[chosen] = rng.choice([0.0, 1.0]) * rng.standard_normal((len(chosen), e.shape[1]))
    return other


def make(truth: Kinship, rng: Rng) -> Case:
    """One random case of a class."""
    width = int(rng.integers(8, 65))
    rows = int(rng.integers(width * 5, width * 30))
    dtype = str(rng.choice(["BF16", "F16", "F32"]))
    memory = Memory()
    e = embedding(rng, rows, width)
    embed = table(e, dtype, memory, "embed")
    note = f"{rows}x{width} {dtype}"
    if truth is Kinship.CAST:
        wide, narrow = [("F32", "BF16"), ("F32", "F16"), ("F64", "F32")][int(rng.integers(3))]
        first = table(e, wide, memory, "wide")
        pair = first, table(first.values(0, rows), narrow, memory, "narrow")
        turned = pair if rng.random() < 0.5 else pair[::-1]
        return Case(truth, *turned, f"{rows}x{width} {wide}/{narrow}")
    if truth in MAPS:
        # Half the time the map saw the values before they were rounded, half the time after.
        base = embed.values(0, rows) if rng.random() < 0.5 or truth is Kinship.PARTLY_EQUAL else e
        head = table(MAPS[truth](base, rng), dtype, memory, "head")
        return Case(truth, embed, head, note)
    return Case(truth, embed, table(_rows(truth, e, rng), dtype, memory, "head"), note)


_LAST = (Kinship.ROW_SCALED, Kinship.LOW_RANK, Kinship.PARTLY_EQUAL)
CLASSES = (*(kind for kind in Kinship if kind not in (Kinship.ALIAS, Kinship.UNKNOWN, *_LAST)), *_LAST)
"""In the order that the seeds of the committed matrix go by."""
