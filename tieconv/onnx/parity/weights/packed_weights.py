"""Find tensors that a graph holds inside a larger matrix or split into smaller ones.

Some exporters split GPT-2's `c_attn` into three matrices. Others pack query, key and value projections into one. Hashes
of sampled elements of each row and column narrow the search. So a wrong checkpoint is refuted after a few reads per
tensor.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from tieconv.checkpoint.value_type import record
from tieconv.onnx.parity.weights.sampled_lines import Lines, View, hashed, positions

_BLOCK = 1 << 21
"""Elements compared at a time."""
_TRIES = 64
"""Failed full comparisons after which one weight is skipped."""

Rows = Callable[[int, int], Any]
"""The bit patterns of a tensor's rows from one number up to another, rows × columns."""


@record
class Tensor:
    """A tensor of the checkpoint; a vector is a column.

    ``forms`` gives its rows as a weight of the given type would hold them, by the name of each fold.
    """

    shape: tuple[int, ...]
    forms: Callable[[str], Iterable[tuple[str, Rows]]]

    def after(self, count: int) -> Tensor:
        """Return the tensor without its first ``count`` rows."""

        def forms(dtype: str) -> Iterator[tuple[str, Rows]]:
            return ((fold, partial(_later, rows, count)) for fold, rows in self.forms(dtype))

        return Tensor((self.shape[0] - count, *self.shape[1:]), forms)

    @property
    def sides(self) -> tuple[int, int]:
        return self.shape[0], self.shape[1] if len(self.shape) > 1 else 1

    @property
    def axes(self) -> range:
        """The axes along which other tensors may be packed with it."""
        return range(len(self.shape))


def _later(rows: Rows, count: int, first: int, end: int) -> Any:
    return rows(count + first, count + end)


@record
class Weight:
    """A weight of the graph: its type and its bit patterns, in the weight's shape."""

    dtype: str
    bits: Any


@record
class Blocks:
    """How tensors are stored in weights.

    ``forms`` says how each tensor is stored. ``held`` are the weights that tensors fill, or that fill a tensor.
    ``within`` are the tensors in a weight that also holds others or padding.
    """

    forms: Mapping[str, str]
    held: frozenset[str]
    within: Mapping[str, set[str]]


def find_blocks(tensors: Mapping[str, Tensor], weights: Mapping[str, Weight]) -> Blocks:
    """Search the tensors inside weights, and weights inside the tensors, side by side along either axis.

    Every element of a match was compared. Vectors are searched in vectors, matrices in matrices, and nothing else is
    searched.
    """
    forms: dict[str, str] = {}
    held: set[str] = set()
    within: dict[str, set[str]] = defaultdict(set)
    filled: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
    looked = {name: tensor for name, tensor in tensors.items() if len(tensor.shape) in (1, 2) and 0 not in tensor.shape}
    lines = _lines(weights) if looked else {}
    for name, tensor in looked.items():
        for packed, view, at, length in _packed(tensor, lines):
            forms.setdefault(name, packed)
            within[view.name].add(name)
            filled[view.name, view.axis].append((at, at + length))
        if name not in forms:
            form, parts = _split(tensor, lines)
            forms |= {name: form} if parts else {}
            held |= parts
    for (weight, axis), stretches in filled.items():
        if _covers(stretches, weights[weight].bits.shape[axis]):
            held.add(weight)
    return Blocks(forms, frozenset(held), within)


def _lines(weights: Mapping[str, Weight]) -> dict[str, Lines]:
    """Return the weights' rows and columns by type."""
    lines: dict[str, Lines] = {}
    for name, weight in weights.items():
        if weight.bits.ndim in (1, 2):
            lines.setdefault(weight.dtype, Lines()).add(name, weight.bits)
    return lines


def _packed(tensor: Tensor, lines: Mapping[str, Lines]) -> Iterator[tuple[str, View, int, int]]:
    """Yield the weights that hold the tensor among others: form, weight, first line and number of lines."""
    for dtype, held in sorted(lines.items()):
        for fold, rows in tensor.forms(dtype):
            grid = _grid(tensor, rows)
            for axis in tensor.axes:
                length, width = tensor.sides[axis], tensor.sides[1 - axis]
                places = held.places(len(tensor.shape), width, hashed(grid.T if axis else grid), length)
                for view, at in _proved(places, rows, tensor, axis):
                    yield _named("packed", fold), view, at, length


def _proved(places: Iterable[tuple[View, int]], rows: Rows, tensor: Tensor, axis: int) -> Iterator[tuple[View, int]]:
    """Yield the matches that a full comparison confirms, without overlaps."""
    ends: dict[View, int] = defaultdict(int)
    tries: dict[View, int] = defaultdict(int)
    length = tensor.sides[axis]
    for view, at in places:
        if at < ends[view] or tries[view] >= _TRIES:
            continue
        part = view.lines[at : at + length]
        if _equal(rows, part.T if axis else part):
            ends[view] = at + length
            yield view, at
        else:
            tries[view] += 1


def _split(tensor: Tensor, lines: Mapping[str, Lines]) -> tuple[str, set[str]]:
    """Return how the tensor is split, and the weights that together hold all of it.

    Both are empty if the tensor is not split.
    """
    for dtype, held in sorted(lines.items()):
        for fold, rows in tensor.forms(dtype):
            for axis in tensor.axes:
                parts = _parts(tensor, rows, axis, held)
                if parts:
                    return _named("split", fold), parts
    return "", set()


def _parts(tensor: Tensor, rows: Rows, axis: int, held: Lines) -> set[str]:
    """Return the weights that form the tensor along the axis; empty if one part is missing."""
    length, width = tensor.sides[axis], tensor.sides[1 - axis]
    names: set[str] = set()
    at = 0
    while at < length:
        likely = held.beginning(len(tensor.shape), width, _line(tensor, rows, axis, at), length - at)
        equal = [view for view in likely[:_TRIES] if _equal(*_stretch(rows, axis, at, view))]
        if not equal:
            return set()
        names.update(view.name for view in equal)
        at += max(len(view.lines) for view in equal)
    return names


def _stretch(rows: Rows, axis: int, at: int, view: View) -> tuple[Rows, Any]:
    """Return the tensor from line ``at`` for the length of the view, and the view in the same orientation."""
    if axis == 0:
        return lambda first, end: rows(at + first, at + end), view.lines
    return lambda first, end: rows(first, end)[:, at : at + len(view.lines)], view.lines.T


def _grid(tensor: Tensor, rows: Rows) -> Any:
    """Return sampled columns of sampled rows."""
    height, width = tensor.sides
    columns = positions(width)
    return np.concatenate([rows(row, row + 1)[:, columns] for row in map(int, positions(height))])


def _line(tensor: Tensor, rows: Rows, axis: int, at: int) -> int:
    """Return the hash of one line along the axis."""
    height, width = tensor.sides
    if axis == 0:
        return int(hashed(rows(at, at + 1)[:, positions(width)])[0])
    return int(hashed(np.array([[rows(row, row + 1)[0, at] for row in map(int, positions(height))]]))[0])


def _named(form: str, fold: str) -> str:
    return f"{form}, {fold}" if fold else form


def _equal(rows: Rows, wanted: Any) -> bool:
    """Return whether the rows equal those of ``wanted`` bit for bit."""
    step = max(_BLOCK // wanted.shape[1], 1)
    return all(
        np.array_equal(rows(at, min(at + step, len(wanted))), wanted[at : at + step])
        for at in range(0, len(wanted), step)
    )


def _covers(stretches: Iterable[tuple[int, int]], length: int) -> bool:
    """Return whether the stretches leave no gap."""
    end = 0
    for first, stop in sorted(stretches):
        if first > end:
            return False
        end = max(end, stop)
    return end >= length
