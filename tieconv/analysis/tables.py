"""Read a stored embedding table in blocks of rows, with bounded memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from tieconv.checkpoint.model_files import ByteReader
from tieconv.checkpoint.results.analysis import POINTS
from tieconv.checkpoint.value_type import record
from tieconv.checkpoint.weight_file import FLOATS, TensorRecord, nbytes
from tieconv.errors import UnreadableError
from tieconv.inspection.numeric.bits import FORMATS, Format, convert, decode
from tieconv.inspection.view_reader import readable
from tieconv.text import shown

Array = npt.NDArray[Any]

BLOCK = 1 << 20
"""Elements of a table in memory at a time (8 MiB as float64)."""

TOGETHER = 128
"""Rows that are read at once if several of them are picked: a call costs more than a few rows."""

MOST_ROWS, WIDEST = 1 << 24, 1 << 16
"""The most rows and columns of a table. Beyond them, values by row or a single row would not fit in memory."""


@record
class Table:
    """A matrix of ``rows`` × ``width`` floats, one row a token."""

    reader: ByteReader
    record: TensorRecord

    @property
    def rows(self) -> int:
        return self.record.shape[0]

    @property
    def width(self) -> int:
        return self.record.shape[1]

    @property
    def form(self) -> Format:
        return FORMATS[self.record.dtype]

    def bits(self, start: int, stop: int) -> Array:
        """Return the bits of the rows ``start`` to ``stop`` (exclusive): (rows, width) unsigned integers."""
        array = np.empty((stop - start, self.width), self.form.bits)
        if array.size:
            offset = start * self.width * self.form.width
            self.reader.read_into(self.record.range, offset, array.reshape(-1).view("u1").data)
        return array

    def values(self, start: int, stop: int) -> Array:
        """Return the rows ``start`` to ``stop`` (exclusive) as float64, (rows, width)."""
        return numbers(self.bits(start, stop), self.form)

    def singles(self, start: int, stop: int) -> Array:
        """Return the rows ``start`` to ``stop`` (exclusive) as float32, (rows, width). Only F64 values are rounded."""
        return singles(self.bits(start, stop), self.form)

    def pick(self, rows: Array) -> Array:
        """Return the rows with these ascending indices as float64: (len(rows), width)."""
        return numbers(self.pick_bits(rows), self.form)

    def pick_singles(self, rows: Array) -> Array:
        """Return the rows with these ascending indices as float32: (len(rows), width)."""
        return singles(self.pick_bits(rows), self.form)

    def pick_bits(self, rows: Array) -> Array:
        """Return the bits of the rows with these ascending indices: (len(rows), width) unsigned integers."""
        if len(rows) and rows[-1] - rows[0] == len(rows) - 1:
            return self.bits(int(rows[0]), int(rows[-1]) + 1)
        picked = np.empty((len(rows), self.width), self.form.bits)
        position = 0
        for batch in np.split(rows, np.flatnonzero(np.diff(rows // TOGETHER)) + 1):
            if len(batch):
                block = self.bits(int(batch[0]), int(batch[-1]) + 1)
                picked[position : position + len(batch)] = block[batch - batch[0]]
                position += len(batch)
        return picked


def numbers(bits: Array, form: Format) -> Array:
    """Convert bits to float64 values of the same shape."""
    with np.errstate(invalid="ignore"):  # a signalling NaN
        values: Array = decode(bits.reshape(-1), form).astype("<f8").reshape(bits.shape)
    return values


def singles(bits: Array, form: Format) -> Array:
    """Convert bits to float32 values of the same shape."""
    with np.errstate(all="ignore"):  # a signalling NaN, or an F64 value beyond float32
        values: Array = decode(bits.reshape(-1), form).astype("<f4", copy=False).reshape(bits.shape)
    return values


def spans(rows: int, width: int, elements: int = BLOCK) -> Iterator[tuple[int, int]]:
    """Yield (start, stop) of blocks of whole rows with at most ``elements`` numbers, at least one row."""
    step = max(elements // max(width, 1), 1)
    for start in range(0, rows, step):
        yield start, min(start + step, rows)


def open_table(reader: ByteReader, record: TensorRecord) -> Table:
    """Return the table of a stored tensor. Raises `UnreadableError` if its bytes are not a matrix of floats."""
    if record.dtype not in FLOATS:
        _refuse(record, f"holds {shown(record.dtype)} values, which may be codes of a quantised matrix")
    if len(record.shape) != 2 or not record.elements:
        _refuse(record, f"has the shape {list(record.shape)}, but a table has rows and columns")
    if record.shape[0] > MOST_ROWS or record.shape[1] > WIDEST:
        _refuse(record, f"has {record.shape[0]:,} rows of {record.shape[1]:,} numbers, more than any embedding")
    if record.nbytes != nbytes(record.dtype, record.shape):
        _refuse(record, "does not fill its shape")
    reader, (record,) = readable(reader, (record,))
    return Table(reader, record)


def _refuse(record: TensorRecord, why: str) -> NoReturn:
    problem = f"{shown(record.range.file)}: {shown(record.name)} {why}; tieconv cannot analyse it"
    raise UnreadableError(problem, "analyse the original model, before quantisation or sharding", "analyze.table")


# Series of numbers to plot, at most `POINTS` of them, evenly spaced with both ends.


def points(values: Array) -> tuple[float, ...]:
    """Return the values, or `POINTS` of them."""
    if len(values) > POINTS:
        values = values[np.linspace(0, len(values) - 1, POINTS).astype("i8")]
    return tuple(float(f"{value:.6g}") for value in values)


def ranges(rows: Array, most: int = 16) -> list[list[int]]:
    """Return ascending rows as ranges [first, last + 1], at most ``most`` of them."""
    runs = np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1) if len(rows) else []
    return [[int(run[0]), int(run[-1]) + 1] for run in runs[:most]]


# Find equal rows and the moments of every column in one pass over both tables. Memory: O(V + d).

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
            rows = values[extreme]
            # Divide each row by its largest number first: the squares may overflow.
            largest = np.abs(rows).max(axis=1)
            units = rows / np.where(largest > 0, largest, 1)[:, None]
            scaled_norms: Array = np.minimum(largest * np.sqrt(np.einsum("ij,ij->i", units, units)), np.finfo("f8").max)
            scaled_norms[~np.isfinite(largest)] = np.nan
            norms[extreme] = scaled_norms
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
            return f"all rows of the {name} are {'equal' if squares.any() else 'zeros'}"
    return ""


# Find equal rows by their digests: rows under another number, and rows that occur twice.

_DIGEST = 16
"""Bytes of a row's digest, enough that different rows do not share one by search or by chance."""


def digests(table: Table, rows: Array | None = None) -> Array:
    """Return a digest of each row's bytes, or of the ascending ``rows``: (V,) of 16-byte strings."""
    count = table.rows if rows is None else len(rows)
    row_digests = np.empty(count, f"V{_DIGEST}")
    for start, stop in spans(count, table.width):
        block = table.bits(start, stop) if rows is None else table.pick_bits(rows[start:stop])
        for row in range(stop - start):
            row_digests[start + row] = np.void(blake2b(block[row].data, digest_size=_DIGEST).digest())
    return row_digests


def twins(norms: Array, width: int) -> Array:
    """Return the rows (ascending) that may be equal to another row, by their lengths (V,) of any float64 summation.

    Sums of the same ``width`` squares differ by at most `_same` of their size, whatever their order. So a row without
    another of nearly its length has no equal. NaN may equal NaN; rows of zeros are left out.
    """
    order = np.argsort(norms, kind="stable")
    close = norms[order][1:] - norms[order][:-1] <= _same(width) * norms[order][1:]
    pairs = np.concatenate([[False], close]) | np.concatenate([close, [False]])
    return np.sort(order[(pairs & (norms[order] > 0)) | np.isnan(norms[order])])


def most_overlap(left: Array, right: Array, width: int) -> int:
    """Return an upper bound of `overlap`, from the lengths of the rows: how many of ``left`` have one in ``right``."""
    numbers = np.sort(right[~np.isnan(right)])
    slack = _same(width) * left
    inside = np.searchsorted(numbers, left + slack, "right") > np.searchsorted(numbers, left - slack, "left")
    return int(np.count_nonzero(inside | np.isnan(left)))


def _same(width: int) -> float:
    """Return the largest relative difference of two float64 sums of the same ``width`` squares."""
    return (width + 8) * 2.0**-51


def overlap(left: Array, right: Array) -> int:
    """Count the digests of ``left`` with an equal one in ``right``; each of ``right`` matches once."""
    first, second = Counter(map(bytes, left)), Counter(map(bytes, right))
    return sum((first & second).values())


def duplicates(row_digests: Array, rows: Array | None = None) -> list[list[int]]:
    """Return the groups of two or more rows with one digest, in order of their first row.

    ``rows`` are the numbers of the digests, by default 0, 1, …
    """
    groups: dict[bytes, list[int]] = {}
    for row, digest in zip(range(len(row_digests)) if rows is None else map(int, rows), row_digests, strict=True):
        groups.setdefault(digest.tobytes(), []).append(row)
    return [group for group in groups.values() if len(group) > 1]
