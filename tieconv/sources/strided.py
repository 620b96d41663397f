"""Read strided views as dense bytes, in blocks of limited size and without NumPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from tieconv.checkpoint.value_type import record
from tieconv.checkpoint.weight_file import ByteRange, TensorRecord

SPAN_LIMIT = 8 * 1024 * 1024
"""The most bytes of a storage that are in memory at a time."""

READ_COST = 8 * 1024
"""Bytes that a disk reads in the time of one further read call."""
REQUEST_COST = 1024 * 1024
"""The same if each read is a network request."""

ReadAt = Callable[[int, memoryview], None]
"""``read(position, buffer)``: fill ``buffer`` from byte ``position`` of the file."""


@record
class StridedRange(ByteRange):
    """The bytes 0 to ``end`` of a view as if stored densely. ``base`` is the offset of its first element."""

    base: int
    width: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a dense tensor in elements, as torch does."""
    strides: list[int] = []
    step = 1
    for side in reversed(shape):
        strides.append(step)
        step *= max(side, 1)
    return tuple(reversed(strides))


def dense(record: TensorRecord) -> TensorRecord:
    """Return the record with a range that reads densely. Changes only strided views."""
    if record.stride is None or isinstance(record.range, StridedRange):
        return record
    last_element = sum((side - 1) * step for side, step in zip(record.shape, record.stride, strict=True))
    width = record.range.size // (last_element + 1)
    span = record.range
    stored = StridedRange(span.file, 0, prod(record.shape) * width, span.start, width, record.shape, record.stride)
    return TensorRecord(record.name, record.dtype, record.shape, stored, record.stride, record.storage)


def gather(read: ReadAt, span: StridedRange, first: int, end: int, cost: int | None = None) -> bytearray:
    """Return the dense bytes ``first`` to ``end`` of a view. Both must be at the border of an element.

    ``cost`` is the cost of one further read, in bytes that could be read in that time. Default: `READ_COST`.
    """
    out = bytearray(end - first)
    if out:
        rows = _Rows(read, span, READ_COST if cost is None else cost)
        for corner, shape, element in _boxes(span.shape, first // span.width, end // span.width):
            rows.copy(corner, shape, memoryview(out), element - first // span.width)
    return out


_Box = tuple[tuple[int, ...], tuple[int, ...], int]
"""Corner, shape, and the dense index of the corner."""


def _boxes(shape: Sequence[int], first: int, end: int) -> list[_Box]:
    """Split the elements ``first`` to ``end`` in row-major order into boxes."""
    if not shape:
        return [((), (), 0)]
    inner = prod(shape[1:])
    row, end_row = first // inner, end // inner
    start, stop = first - row * inner, end - end_row * inner
    if row == end_row:
        return _under(shape, row, start, stop)
    boxes = []
    if start:
        boxes += _under(shape, row, start, inner)
        row += 1
    if row < end_row:
        corner = (row, *(0 for _ in shape[1:]))
        boxes.append((corner, (end_row - row, *shape[1:]), row * inner))
    if stop:
        boxes += _under(shape, end_row, 0, stop)
    return boxes


def _under(shape: Sequence[int], row: int, start: int, stop: int) -> list[_Box]:
    """Return the boxes of one row, from its element ``start`` to ``stop``."""
    before = row * prod(shape[1:])
    return [
        ((row, *corner), (1, *sides), before + element) for corner, sides, element in _boxes(shape[1:], start, stop)
    ]


@dataclass(slots=True)
class _Rows:
    """Copies boxes of a view, split until the stored bytes of each box fit the limit."""

    read: ReadAt
    span: StridedRange
    cost: int

    def copy(self, corner: tuple[int, ...], shape: tuple[int, ...], out: memoryview, element: int) -> None:
        """Copy the box at ``corner`` to dense element ``element`` of ``out``, in the row-major order of the view."""
        reach = [(side - 1) * step for side, step in zip(shape, self.span.stride, strict=True)]
        elements = sum(reach) + 1
        run = self._run(shape)
        if prod(shape) // run[1] * self.cost + prod(shape) * self.span.width < elements * self.span.width:
            self._copy_runs(corner, shape, run[0], out, element)
        elif elements * self.span.width > SPAN_LIMIT and max(shape) > 1:
            axis = max(range(len(shape)), key=lambda i: reach[i])
            half = shape[axis] // 2
            self.copy(corner, _with(shape, axis, half), out, element)
            moved = _with(corner, axis, corner[axis] + half)
            skipped = half * prod(self.span.shape[axis + 1 :])
            self.copy(moved, _with(shape, axis, shape[axis] - half), out, element + skipped)
        else:
            self._copy_held(corner, shape, elements, out, element)

    def _run(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """Return the axis with contiguous elements and their number. The axis is -1 if there is none."""
        sides = [(shape[axis], axis) for axis, step in enumerate(self.span.stride) if step == 1]
        length, axis = max(sides, default=(1, -1))
        return (axis, length) if length > 1 else (-1, 1)

    def _copy_runs(
        self, corner: tuple[int, ...], shape: tuple[int, ...], run: int, out: memoryview, element: int
    ) -> None:
        steps = row_major(self.span.shape)
        for index in product(*(range(1) if axis == run else range(side) for axis, side in enumerate(shape))):
            at = tuple(start + moved for start, moved in zip(corner, index, strict=True))
            row = tuple(side if axis == run else 1 for axis, side in enumerate(shape))
            there = element + sum(moved * step for moved, step in zip(index, steps, strict=True))
            self._copy_held(at, row, prod(row), out, there)

    def _copy_held(
        self, corner: tuple[int, ...], shape: tuple[int, ...], elements: int, out: memoryview, element: int
    ) -> None:
        """Copy a box after one read of its stored bytes, one run along its longest axis at a time."""
        width, stride = self.span.width, self.span.stride
        held = bytearray(elements * width)
        first = sum(at * step for at, step in zip(corner, stride, strict=True))
        self.read(self.span.base + width * first, memoryview(held))
        cast, per_element = _words(width)
        source, target = cast(memoryview(held)), cast(out)
        steps = row_major(self.span.shape)
        inner = max(range(len(shape)), key=lambda i: shape[i] if stride[i] else 0, default=-1)
        if inner >= 0 and not stride[inner]:
            inner = -1
        outer = [range(1) if axis == inner else range(side) for axis, side in enumerate(shape)]
        count, step, jump = (shape[inner], stride[inner], steps[inner]) if inner >= 0 else (1, 1, 1)
        step, jump = step * per_element, jump * per_element
        for index in product(*outer):
            here = sum(i * s for i, s in zip(index, stride, strict=True)) * per_element
            there = (element + sum(i * s for i, s in zip(index, steps, strict=True))) * per_element
            for a, b in zip(range(here, here + per_element), range(there, there + per_element), strict=True):
                target[b : b + (count - 1) * jump + 1 : jump] = source[a : a + (count - 1) * step + 1 : step]


def _words(width: int) -> tuple[Callable[[memoryview], memoryview], int]:
    """Return a cast to the widest machine words of an element, and their number."""
    if width == 2:
        return (lambda view: view.cast("B").cast("H")), 1
    if width % 4:
        return (lambda view: view.cast("B")), width
    if width % 8:
        return (lambda view: view.cast("B").cast("I")), width // 4
    return (lambda view: view.cast("B").cast("Q")), width // 8


def _with(values: tuple[int, ...], axis: int, value: int) -> tuple[int, ...]:
    return (*values[:axis], value, *values[axis + 1 :])
