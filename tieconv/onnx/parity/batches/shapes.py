"""Choose the shapes that a graph is measured on: nine with three seeds each, and some with one seed."""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.onnx.parity.batches.cell import Cell, Layout
from tieconv.onnx.parity.graph.bindings import Kind, Padding

SEEDS = (0, 1, 2)
STEPS = 32
PROMPT = 5

Shape = tuple[int, int, int, int]
"""Batch, sequence, past and padding of a `Cell`."""

_CACHED: tuple[Shape, ...] = ((2, 3, 7, 2), (1, 1, 7, 0), (1, 5, 0, 0), (3, 1, 11, 4), (4, 6, 0, 3), (1, 1, 0, 0),
                              (2, 2, 1, 0), (2, 16, 0, 5), (1, 8, 24, 0))  # fmt: skip
_PLAIN: tuple[Shape, ...] = ((2, 10, 0, 2), (1, 8, 0, 0), (1, 5, 0, 0), (3, 12, 0, 4), (4, 6, 0, 3), (1, 1, 0, 0),
                             (2, 1, 0, 0), (2, 16, 0, 5), (1, 32, 0, 0))  # fmt: skip
_SEQ2SEQ: tuple[Shape, ...] = ((2, 3, 7, 2), (1, 1, 7, 0), (1, 5, 1, 0), (3, 1, 11, 4), (4, 6, 6, 3), (1, 1, 1, 0),
                               (2, 2, 1, 0), (2, 16, 16, 5), (1, 8, 24, 0))  # fmt: skip
_SHAPES = {Kind.CACHED: _CACHED, Kind.PLAIN: _PLAIN, Kind.MASKED: _PLAIN, Kind.SEQ2SEQ: _SEQ2SEQ}
_LEFT_TOO: tuple[Shape, ...] = ((3, 12, 0, 4), (3, 1, 11, 4))
"""The shapes that stay padded on the left in models that are usually padded on the right."""
_HOLES: dict[Kind, tuple[Shape, ...]] = {
    Kind.CACHED: ((2, 4, 8, 3), (2, 12, 0, 3)),
    Kind.PLAIN: ((2, 12, 0, 3),),
    Kind.MASKED: ((2, 12, 0, 3),),
    Kind.SEQ2SEQ: ((2, 5, 12, 3),),
}


def cells(kind: Kind, longest: int, where: Padding = Padding.FRONT) -> Iterator[Cell]:
    """Yield nine shapes with three seeds each. None exceeds ``longest`` tokens, the model's limit.

    Masked models and encoder-decoders are padded on the right, decoders on the left. If a graph takes no left padding,
    several tokens after a past are in a batch of one row.
    """
    for shape in _SHAPES[kind]:
        right = kind in (Kind.MASKED, Kind.SEQ2SEQ) and shape not in _LEFT_TOO
        for seed in SEEDS:
            cell = _cell(shape, seed, where, Layout.RIGHT if right else Layout.LEFT)
            if _fits(cell, kind, longest):
                yield cell


def single_seed_cells(
    kind: Kind, longest: int, where: Padding = Padding.FRONT, *, holes: bool = True
) -> Iterator[Cell]:
    """Yield the shapes that need one seed. ``holes`` says whether the graph takes any mask."""
    for shape in _HOLES[kind] if holes and where is Padding.FRONT else ():
        cell = _cell(shape, 0, where, Layout.HOLE)
        if _fits(cell, kind, longest):
            yield cell


def stepped(longest: int, where: Padding = Padding.FRONT) -> Iterator[Cell]:
    """Yield a prompt with left padding in one row, then single tokens with the cache."""
    steps = min(STEPS, longest - PROMPT)
    for seed in SEEDS if steps > 0 else ():
        yield Cell(2, steps, PROMPT, 0 if where is Padding.NONE else 2, seed, steps, where)


def _cell(shape: Shape, seed: int, where: Padding, layout: Layout) -> Cell:
    batch, sequence, past, padding = shape
    alone = where is not Padding.FRONT and past > 0 and sequence > 1
    full = alone or where is Padding.NONE
    return Cell(1 if alone else batch, sequence, past, 0 if full else padding, seed, where=where, layout=layout)


def _fits(cell: Cell, kind: Kind, longest: int) -> bool:
    return max(cell.past, cell.sequence, 0 if kind is Kind.SEQ2SEQ else cell.length) <= longest
