"""Find equal rows and the moments of every column in one pass over both tables. Memory: O(V + d)."""

from __future__ import annotations

import numpy as np

from tieconv.analysis.model.tables import Array, Table, numbers, spans
from tieconv.checkpoint.value_type import record
from tieconv.inspection.numeric.bits import Format, convert

SQUARED = (1e-150, 1e150)
"""The range of row lengths whose squares, and sums of them, float64 holds with full precision."""
SAME = 1e-12
"""Share of a table's energy up to which rounding of the sums explains a difference between its rows."""


@record
class Moments:
    """The moments of the first ``rows`` rows of E and U, both ``width`` wide.

    Sums are float64, over the rows whose values and squares are finite in both (``finite``). ``unequal`` marks rows
    that differ in a bit. For two types it marks rows that differ after rounding to the narrower type, ``cast``. For one
    type ``cast`` is empty. ``unequal_columns`` marks columns in the same way. ``distances`` are ‖U_v − E_v‖.
    """

    rows: int
    width: int
    norms: tuple[Array, Array]
    distances: Array
    unequal: Array
    finite: Array
    sums: tuple[Array, Array]
    squares: tuple[Array, Array]
    cross: Array
    cast: str
    unequal_columns: Array

    @property
    def count(self) -> int:
        """The number of rows in the sums."""
        return int(np.count_nonzero(self.finite))

    @property
    def energies(self) -> tuple[float, float]:
        """‖E‖² and ‖U‖² (Frobenius)."""
        return float(self.squares[0].sum()), float(self.squares[1].sum())

    @property
    def means(self) -> tuple[Array, Array]:
        """The mean row of each table."""
        count = max(self.count, 1)
        return self.sums[0] / count, self.sums[1] / count


def measure(embed: Table, head: Table) -> Moments:
    """Return the moments of the rows that both tables have. Raises the errors of the reader."""
    rows, width = min(embed.rows, head.rows), embed.width
    moments = Moments(
        rows,
        width,
        (np.zeros(embed.rows), np.zeros(head.rows)),
        np.zeros(rows),
        np.zeros(rows, bool),
        np.zeros(rows, bool),
        (np.zeros(width), np.zeros(width)),
        (np.zeros(width), np.zeros(width)),
        np.zeros(width),
        "" if embed.form == head.form else _narrower(embed.form, head.form),
        np.zeros(width, bool),
    )
    for start, stop in spans(rows, width):
        _add(moments, start, stop, embed.bits(start, stop), head.bits(start, stop), (embed.form, head.form))
    for side, table in enumerate((embed, head)):
        for start, stop in spans(table.rows - rows, width):
            values = table.values(rows + start, rows + stop)
            moments.norms[side][rows + start : rows + stop] = _lengths(values)
    return moments


def _add(moments: Moments, start: int, stop: int, e_bits: Array, u_bits: Array, forms: tuple[Format, Format]) -> None:
    e, u = numbers(e_bits, forms[0]), numbers(u_bits, forms[1])
    differing = _unequal(e_bits, u_bits, forms)
    moments.unequal[start:stop] = differing.any(axis=1)
    moments.unequal_columns[:] |= differing.any(axis=0)
    moments.norms[0][start:stop], moments.norms[1][start:stop] = _lengths(e), _lengths(u)
    with np.errstate(all="ignore"):
        moments.distances[start:stop] = _lengths(u - e)
    finite = (moments.norms[0][start:stop] < SQUARED[1]) & (moments.norms[1][start:stop] < SQUARED[1])  # a NaN is not
    moments.finite[start:stop] = finite
    if not finite.all():
        e, u = e[finite], u[finite]
    moments.sums[0][:] += e.sum(0)
    moments.sums[1][:] += u.sum(0)
    moments.squares[0][:] += np.einsum("ij,ij->j", e, e)
    moments.squares[1][:] += np.einsum("ij,ij->j", u, u)
    moments.cross[:] += np.einsum("ij,ij->j", e, u)


def _unequal(e: Array, u: Array, forms: tuple[Format, Format]) -> Array:
    if forms[0] != forms[1]:
        narrow = forms[0] if _narrower(*forms) == forms[0].name else forms[1]
        e = convert(e.reshape(-1), forms[0], narrow).reshape(e.shape)
        u = convert(u.reshape(-1), forms[1], narrow).reshape(u.shape)
    differing: Array = e != u
    return differing


def _narrower(left: Format, right: Format) -> str:
    """Return the type with fewer mantissa bits: BF16 rather than F16, whose range is smaller but steps finer."""
    return min((left, right), key=lambda form: form.mantissa).name


def _lengths(values: Array) -> Array:
    """Return the length of each row. Only zero rows give 0, and only rows with NaN or infinity give NaN."""
    with np.errstate(all="ignore"):
        norms: Array = np.sqrt(np.einsum("ij,ij->i", values, values))
        extreme = ~((norms > SQUARED[0]) & (norms < SQUARED[1]))
        if extreme.any():
            norms[extreme] = _careful_lengths(values[extreme])
    return norms


def _careful_lengths(rows: Array) -> Array:
    """Return the length of rows whose squares may overflow: each row is first divided by its largest number."""
    largest = np.abs(rows).max(axis=1)
    units = rows / np.where(largest > 0, largest, 1)[:, None]
    norms: Array = np.minimum(largest * np.sqrt(np.einsum("ij,ij->i", units, units)), np.finfo("f8").max)
    norms[~np.isfinite(largest)] = np.nan
    return norms


def lengths(table: Table) -> Array:
    """Return ‖row‖ of each row of one table: (V,)."""
    norms = np.zeros(table.rows)
    for start, stop in spans(table.rows, table.width):
        norms[start:stop] = _lengths(table.values(start, stop))
    return norms


def untellable(moments: Moments, fewest: int) -> str:
    """Return why the tables allow no choice between maps, for example equal rows; empty if they allow one."""
    if moments.count < fewest:
        return f"the tables have fewer than {fewest} common rows without NaN or infinity"
    for name, squares, mean in zip(("embedding", "head"), moments.squares, moments.means, strict=True):
        if float(squares.sum()) < moments.count * SQUARED[0] ** 2 and moments.norms[name == "head"].any():
            return f"the numbers of the {name} are too small to be squared"
        if float((squares - moments.count * mean**2).sum()) <= SAME * float(squares.sum()):
            return f"all rows of the {name} are equal"
    return ""
