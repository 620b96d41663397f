"""Read a stored embedding table in blocks of rows, with bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from tieconv.checkpoint.files.dtypes import FLOATS, nbytes
from tieconv.checkpoint.files.interface import ByteReader
from tieconv.checkpoint.files.weight_file import TensorRecord
from tieconv.checkpoint.value_type import record
from tieconv.errors import UnreadableError
from tieconv.inspection.numeric.bits import FORMATS, Format, decode
from tieconv.inspection.view_reader import readable
from tieconv.text import shown

Array = npt.NDArray[Any]

BLOCK = 1 << 20
"""Elements of a table in memory at a time (8 MiB as float64)."""


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
        return _singles(self.bits(start, stop), self.form)

    def pick(self, rows: Array) -> Array:
        """Return the rows with these ascending indices as float64: (len(rows), width)."""
        return numbers(self.pick_bits(rows), self.form)

    def pick_singles(self, rows: Array) -> Array:
        """Return the rows with these ascending indices as float32: (len(rows), width)."""
        return _singles(self.pick_bits(rows), self.form)

    def pick_bits(self, rows: Array) -> Array:
        """Return the bits of the rows with these ascending indices: (len(rows), width) unsigned integers."""
        picked = np.empty((len(rows), self.width), self.form.bits)
        position = 0
        for run in np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1):
            if len(run):
                picked[position : position + len(run)] = self.bits(int(run[0]), int(run[-1]) + 1)
                position += len(run)
        return picked


def numbers(bits: Array, form: Format) -> Array:
    """Convert bits to float64 values of the same shape."""
    with np.errstate(invalid="ignore"):  # a signalling NaN
        values: Array = decode(bits.reshape(-1), form).astype("<f8").reshape(bits.shape)
    return values


def _singles(bits: Array, form: Format) -> Array:
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
    raise UnreadableError(
        f"{shown(record.range.file)}: {shown(record.name)} {why}; tieconv cannot analyse it",
        "analyse the original model, before quantisation or sharding",
        "analyze.table",
    )
