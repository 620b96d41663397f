"""Choose the shapes that a graph is measured on: nine with three seeds each, and some with one seed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tieconv.onnx.parity.batches.cell import Cell, Layout
from tieconv.onnx.parity.graph.bindings import Kind, Padding

SEEDS = (0, 1, 2)
STEPS = 32
PROMPT = 5
LONG = 144
"""Tokens of the long sequence, if the model has so many positions."""
BEYOND = 8
"""Tokens before and after the end of a sliding window that are measured."""
_CHUNK = 16

Shape = tuple[int, int, int, int]
"""Batch, sequence, past and padding of a `Cell`."""

_CACHED: tuple[Shape, ...] = ((2, 3, 7, 2), (1, 1, 7, 0), (1, 5, 0, 0), (3, 1, 11, 4), (4, 6, 0, 3), (1, 1, 0, 0),
                              (2, 2, 1, 0), (2, 16, 0, 5), (1, 8, 24, 0))  # fmt: skip
_PLAIN: tuple[Shape, ...] = ((2, 10, 0, 2), (1, 8, 0, 0), (1, 5, 0, 0), (3, 12, 0, 4), (4, 6, 0, 3), (1, 1, 0, 0),
                             (2, 1, 0, 0), (2, 16, 0, 5), (1, 32, 0, 0))  # fmt: skip
_SEQ2SEQ: tuple[Shape, ...] = ((2, 3, 7, 2), (1, 1, 7, 0), (1, 5, 1, 0), (3, 1, 11, 4), (4, 6, 6, 3), (1, 1, 1, 0),
                               (2, 2, 1, 0), (2, 16, 16, 5), (1, 8, 24, 0))  # fmt: skip
_SHAPES = {Kind.CACHED: _CACHED, Kind.PLAIN: _PLAIN, Kind.MASKED: _PLAIN, Kind.SEQ2SEQ: _SEQ2SEQ, Kind.PAIR: _SEQ2SEQ}
_STEPPED_ENCODER = ((3, 12, 5), (2, 7, 2))
"""Rows, encoder tokens and padding of the batches that an encoder-decoder is stepped on."""
_LEFT_TOO: tuple[Shape, ...] = ((3, 12, 0, 4), (3, 1, 11, 4))
"""The shapes that stay padded on the left in models that are usually padded on the right."""
_HOLES: dict[Kind, tuple[Shape, ...]] = {
    Kind.CACHED: ((2, 4, 8, 3), (2, 12, 0, 3)),
    Kind.PLAIN: ((2, 12, 0, 3),),
    Kind.MASKED: ((2, 12, 0, 3),),
    Kind.SEQ2SEQ: ((2, 5, 12, 3),),
    Kind.PAIR: ((2, 5, 12, 3),),
}
_SIX_ROWS: dict[Kind, tuple[Shape, ...]] = {
    Kind.CACHED: ((6, 14, 0, 11), (6, 1, 13, 11)),
    Kind.PLAIN: ((6, 14, 0, 11),),
    Kind.MASKED: ((6, 14, 0, 11),),
    Kind.SEQ2SEQ: ((6, 4, 14, 11),),
    Kind.PAIR: ((6, 4, 14, 11),),
}


def cells(kind: Kind, longest: int, where: Padding = Padding.FRONT) -> Iterator[Cell]:
    """Yield nine shapes with three seeds each. None exceeds ``longest`` tokens, the model's limit.

    Masked models and encoder-decoders are padded on the right, decoders on the left. If a graph takes no left padding,
    several tokens after a past are in a batch of one row.
    """
    for shape in _SHAPES[kind]:
        right = (kind is Kind.MASKED or kind.encodes) and shape not in _LEFT_TOO
        for seed in SEEDS:
            cell = _cell(shape, seed, where, Layout.RIGHT if right else Layout.LEFT)
            if _fits(cell, kind, longest):
                yield cell


def single_seed_cells(
    kind: Kind,
    longest: int,
    where: Padding = Padding.FRONT,
    *,
    holes: bool = True,
    window: int = 0,
    length: int = 0,
    batch: int = 0,
) -> Iterator[Cell]:
    """Yield the shapes that need one seed: holes, six rows, a long sequence, and one longer than the window.

    ``holes`` says whether the graph takes any mask. ``window`` is the sliding window to measure; 0 means none.
    ``length`` and ``batch`` are those of more shapes that the user wants.
    """
    right = Layout.RIGHT if kind is Kind.MASKED or kind.encodes else Layout.LEFT
    shapes = [(shape, Layout.HOLE) for shape in _HOLES[kind] if holes and where is Padding.FRONT]
    shapes += [(shape, right) for shape in (*_SIX_ROWS[kind], *_long(kind, min(LONG, longest)))]
    shapes += [((batch, *shape[1:]), right) for shape in _SIX_ROWS[kind] if batch]
    shapes += [(shape, right) for shape in (_long(kind, length) if length else ())]
    for shape, layout in dict.fromkeys(shapes):
        cell = _cell(shape, 0, where, layout)
        if _fits(cell, kind, longest):
            yield cell
    if not kind.encodes:
        yield from _across(kind, window, min(window + BEYOND, longest), where)


def embedding_cells(longest: int, where: Padding = Padding.FRONT, *, blocks: bool) -> Iterator[Cell]:
    """Yield shapes with random rows of `inputs_embeds`; with ``blocks`` some tokens attend to later ones."""
    for shape in _CACHED:
        cell = replace(_cell(shape, 0, where, Layout.LEFT), embeds=True)
        if _fits(cell, Kind.CACHED, longest):
            yield cell
            if blocks and cell.length > 1:
                yield replace(cell, blocks=True)


def _long(kind: Kind, length: int) -> tuple[Shape, ...]:
    """Return shapes of ``length`` tokens, in one pass and after a past."""
    if kind.encodes:
        return ((1, length, length, 0),)
    whole = (1, length, 0, 0)
    return (whole, (1, _CHUNK, length - _CHUNK, 0)) if kind is Kind.CACHED and length > _CHUNK else (whole,)


def _across(kind: Kind, window: int, end: int, where: Padding) -> Iterator[Cell]:
    """Yield a sequence up to ``end``, beyond the window, in one pass and in cached steps. Its end is judged."""
    if window < 1 or end <= window:
        return
    first = max(window - BEYOND, 1)
    if end > LONG:
        yield Cell(1, end, 0, 0, 0, where=where, judged_last=end - first)
    if kind is Kind.CACHED and not PROMPT < window <= PROMPT + STEPS - BEYOND:
        yield Cell(1, end - first, first, 0, 0, end - first, where)


def stepped(longest: int, where: Padding = Padding.FRONT, kind: Kind = Kind.CACHED) -> Iterator[Cell]:
    """Yield a prompt with left padding in one row, then single tokens with the cache.

    An encoder-decoder gets padding in the rows of the encoder: on the right, on the left, and in the middle.
    """
    steps = min(STEPS, longest - PROMPT)
    if kind is Kind.PAIR and steps > 0:
        for seed, layout in zip(SEEDS, Layout, strict=True):
            for batch, encoded, padding in _STEPPED_ENCODER:
                yield Cell(batch, PROMPT + steps, encoded, padding, seed, steps, where, layout, steps)
        return
    for seed in SEEDS if steps > 0 else ():
        yield Cell(2, steps, PROMPT, 0 if where is Padding.NONE else 2, seed, steps, where)


def _cell(shape: Shape, seed: int, where: Padding, layout: Layout) -> Cell:
    batch, sequence, past, padding = shape
    alone = where is not Padding.FRONT and past > 0 and sequence > 1
    full = alone or where is Padding.NONE
    return Cell(1 if alone else batch, sequence, past, 0 if full else padding, seed, where=where, layout=layout)


def _fits(cell: Cell, kind: Kind, longest: int) -> bool:
    return max(cell.past, cell.sequence, 0 if kind.encodes else cell.length) <= longest
