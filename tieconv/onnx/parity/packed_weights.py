"""Find tensors that a graph holds inside a larger matrix or split into smaller ones.

Some exporters split GPT-2's `c_attn` into three matrices. Others pack query, key and value projections into one. Hashes
of sampled elements of each row and column narrow the search. So a wrong checkpoint is refuted after a few reads per
tensor.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from tieconv.checkpoint.value_type import record

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


# Find rows and columns of a graph's weights by a hash of sampled elements.


_SAMPLES = 48
_FACTORS = np.random.default_rng(0).integers(1, 1 << 63, _SAMPLES, dtype=np.uint64) | np.uint64(1)
_AT_ONCE = 1 << 14
"""Lines hashed at a time."""


@record
class View:
    """A weight as lines × width: its rows, or with ``axis`` 1 its columns."""

    __eq__ = object.__eq__  # compare by identity: arrays and sessions have no useful equality
    __hash__ = object.__hash__

    name: str
    axis: int
    lines: Any


def positions(side: int) -> Any:
    """Return which of ``side`` elements are sampled, including the first and the last."""
    return np.unique(np.linspace(0, side - 1, min(_SAMPLES, side)).astype(np.int64))


def hashed(samples: Any) -> Any:
    """Return a number for each row of ``samples``. Equal rows have equal numbers."""
    return (samples.astype(np.int64).view(np.uint64) * _FACTORS[: samples.shape[1]]).sum(axis=1, dtype=np.uint64)


@dataclass
class _Shelf:
    """The lines of one width, view after view."""

    views: list[View] = field(default_factory=list)
    hashes: list[Any] = field(default_factory=list)
    starts: list[int] = field(default_factory=lambda: [0])
    _sorted: tuple[Any, Any, Any] | None = None

    def add(self, view: View) -> None:
        columns, lines = positions(view.lines.shape[1]), view.lines
        steps = range(0, len(lines), _AT_ONCE)
        self.views.append(view)
        self.hashes.append(np.concatenate([hashed(lines[at : at + _AT_ONCE][:, columns]) for at in steps]))
        self.starts.append(self.starts[-1] + len(lines))

    def at(self, number: int) -> tuple[Any, Any]:
        """Return all hashes, and the sorted positions of ``number`` among them."""
        if self._sorted is None:
            whole = np.concatenate(self.hashes)
            order = np.argsort(whole, kind="stable")
            self._sorted = whole, order, whole[order]
        whole, order, ranked = self._sorted
        first, end = (int(np.searchsorted(ranked, np.uint64(number), side)) for side in ("left", "right"))
        return whole, order[first:end]


class Lines:
    """The lines of weights of one type."""

    def __init__(self) -> None:
        self._shelves: dict[tuple[int, int], _Shelf] = defaultdict(_Shelf)

    def add(self, name: str, bits: Any) -> None:
        """Add a vector or a matrix."""
        views = [View(name, 0, bits[:, None])] if bits.ndim == 1 else [View(name, 0, bits), View(name, 1, bits.T)]
        for view in views:
            self._shelves[bits.ndim, view.lines.shape[1]].add(view)

    def places(self, axes: int, width: int, sampled: Any, length: int) -> Iterator[tuple[View, int]]:
        """Yield candidate positions of ``length`` lines whose hashes at ``positions(length)`` are given.

        The result has views of weights with ``axes`` axes and lines of ``width``, each with its first line.
        """
        shelf = self._shelves.get((axes, width))
        if shelf is None:
            return
        whole, likely = shelf.at(int(sampled[0]))
        starts = np.array(shelf.starts)
        views = np.searchsorted(starts, likely, "right") - 1
        fits = likely + length <= starts[views + 1]
        likely, views = likely[fits], views[fits]
        for offset, number in zip(positions(length), sampled, strict=True):
            alike = whole[likely + offset] == number
            likely, views = likely[alike], views[alike]
        for at, view in zip(likely.tolist(), views.tolist(), strict=True):
            yield shelf.views[view], at - shelf.starts[view]

    def beginning(self, axes: int, width: int, number: int, longest: int) -> list[View]:
        """Return views whose first line has the hash ``number``, the longest first.

        They have at most ``longest`` lines.
        """
        shelf = self._shelves.get((axes, width))
        if shelf is None:
            return []
        _, likely = shelf.at(number)
        first = {
            start: view for start, view in zip(shelf.starts, shelf.views, strict=False) if len(view.lines) <= longest
        }
        return sorted((first[at] for at in likely.tolist() if at in first), key=lambda view: -len(view.lines))
