"""Find rows and columns of a graph's weights by a hash of sampled elements."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tieconv.checkpoint.value_type import record

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
