"""Tensors that a graph holds as part of a larger matrix, or in several smaller ones: packed and split projections.

GPT-2's `c_attn` comes out of some exporters as three matrices; of others the query, key and value projections as one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

_SAMPLES = 48
_BLOCK = 1 << 21
"""Elements compared at a time."""

Forms = Callable[[str], Iterable[tuple[str, Any]]]
"""A tensor's bit patterns as a weight of the given type would hold them, by the name of each fold."""


@dataclass(frozen=True)
class Weight:
    """A weight of the graph: its type and its bit patterns, a vector or a matrix."""

    dtype: str
    bits: Any


@dataclass
class Blocks:
    """``how`` each tensor was found; ``held`` are the weights that tensors fill, or that fill a tensor."""

    how: dict[str, str] = field(default_factory=dict)
    held: set[str] = field(default_factory=set)


def find_blocks(tensors: Mapping[str, Forms], weights: Mapping[str, Weight]) -> Blocks:
    """Look for the tensors inside weights and for weights inside the tensors, side by side along either axis.

    Every element of what is found was compared.
    """
    found = Blocks()
    filled: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
    for name, forms in tensors.items():
        for how, weight, axis, stretch in _packed(forms, weights):
            found.how.setdefault(name, how)
            filled[weight, axis].append(stretch)
        if name not in found.how:
            _split(name, forms, weights, found)
    for (weight, axis), stretches in filled.items():
        if _covers(stretches, weights[weight].bits.shape[axis]):
            found.held.add(weight)
    return found


def _packed(forms: Forms, weights: Mapping[str, Weight]) -> Iterator[tuple[str, str, int, tuple[int, int]]]:
    """The weights that hold the tensor among others: how, which, along which axis of theirs, from where to where."""
    for fold, bits, alike in _forms(forms, weights):
        for name, stored in alike.items():
            for turned, view in _views(stored):
                for axis, at in _places(bits, view):
                    yield _named("packed", fold), name, axis ^ turned, (at, at + bits.shape[axis])


def _split(name: str, forms: Forms, weights: Mapping[str, Weight], found: Blocks) -> None:
    """Note the tensor as found where weights that stand in it fill it."""
    for fold, bits, alike in _forms(forms, weights):
        for axis in range(bits.ndim):
            parts = [
                (other, at, at + view.shape[axis])
                for other, stored in alike.items()
                for _, view in _views(stored)
                for along, at in _places(view, bits)
                if along == axis
            ]
            if _covers(((first, last) for _, first, last in parts), bits.shape[axis]):
                found.how[name] = _named("split", fold)
                found.held.update(other for other, _, _ in parts)
                return


def _forms(forms: Forms, weights: Mapping[str, Weight]) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Each form of the tensor, with the weights that could hold it."""
    for dtype in sorted({weight.dtype for weight in weights.values()}):
        alike = {name: weight.bits for name, weight in weights.items() if weight.dtype == dtype}
        for fold, bits in forms(dtype):
            yield fold, bits, alike


def _views(bits: Any) -> list[tuple[int, Any]]:
    return [(0, bits), (1, bits.T)] if bits.ndim > 1 else [(0, bits)]


def _named(how: str, fold: str) -> str:
    return f"{how}, {fold}" if fold else how


def _places(small: Any, large: Any) -> Iterator[tuple[int, int]]:
    """The axis along which, and the row or column from which, ``large`` holds all of ``small``."""
    if small.ndim != large.ndim:
        return
    if small.ndim == 1:
        small, large = small[:, None], large[:, None]
    for axis in (0, 1):
        own, other = (small, large) if axis == 0 else (small.T, large.T)
        if own.shape[1] == other.shape[1] and 0 < len(own) < len(other):
            yield from ((axis, at) for at in _offsets(own, other))


def _offsets(small: Any, large: Any) -> Iterator[int]:
    """The rows from which ``large`` holds ``small``, none of them within an earlier one's stretch."""
    columns, end = small.shape[1], 0
    sampled = np.unique(np.linspace(0, columns - 1, min(_SAMPLES, columns)).astype(np.int64))
    likely = (large[: len(large) - len(small) + 1, sampled] == small[0, sampled]).all(axis=1)
    for at in map(int, np.flatnonzero(likely)):
        if at >= end and _equal(small, large[at : at + len(small)]):
            end = at + len(small)
            yield at


def _equal(one: Any, other: Any) -> bool:
    step = max(_BLOCK // one.shape[1], 1)
    return all(np.array_equal(one[at : at + step], other[at : at + step]) for at in range(0, len(one), step))


def _covers(stretches: Iterable[tuple[int, int]], length: int) -> bool:
    """Whether the stretches leave nothing out."""
    end = 0
    for first, last in sorted(stretches):
        if first > end:
            return False
        end = max(end, last)
    return end >= length
