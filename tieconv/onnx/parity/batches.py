"""Choose the batches that a graph is measured on: their shapes, their padding and their tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from enum import StrEnum
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from tieconv.checkpoint.results.parity import Vocabulary
from tieconv.checkpoint.value_type import record
from tieconv.onnx.parity.bindings import Bindings, Kind, Padding, Role
from tieconv.reference.model import Batch, EncoderInput, Features

# Choose the shapes that a graph is measured on: nine with three seeds each, and some with one seed.

SEEDS = (0, 1, 2)
STEPS = 32
PROMPT = 5
_FEW_STEPS = 8
LONG = 144
"""Tokens of the long sequence, if the model has so many positions."""
BEYOND = 8
"""Tokens before and after the end of a sliding window that are measured."""
_CHUNK = 16
FULL = 2048
"""Positions of the largest model whose whole length a full budget feeds."""
_FULL_ROWS = 16

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
    **dict.fromkeys((Kind.PLAIN, Kind.MASKED), ((2, 12, 0, 3),)),
    **dict.fromkeys((Kind.SEQ2SEQ, Kind.PAIR), ((2, 5, 12, 3),)),
}
_SIX_ROWS: dict[Kind, tuple[Shape, ...]] = {
    Kind.CACHED: ((6, 14, 0, 11), (6, 1, 13, 11)),
    **dict.fromkeys((Kind.PLAIN, Kind.MASKED), ((6, 14, 0, 11),)),
    **dict.fromkeys((Kind.SEQ2SEQ, Kind.PAIR), ((6, 4, 14, 11),)),
}


def first_cells(kind: Kind, longest: int, where: Padding = Padding.FRONT, *, holes: bool = True) -> Iterator[Cell]:
    """Yield the batches of every measurement: few positions, each of which sees many faults.

    They are a long sequence, six rows with different masks, and one token alone. A decoder with a cache gets the same
    tokens again in pieces: a prompt, single tokens, and longer pieces. ``holes`` is as in `single_seed_cells`.
    """
    length, width = min(LONG, longest), min(_CHUNK, longest)
    masks = Layout.LEFT
    if kind.encodes or kind is Kind.MASKED:
        masks = Layout.SIDES
    elif holes and where is Padding.FRONT:
        masks = Layout.MIXED
    rows = Cell(6, width, 0, 0 if where is Padding.NONE else 11, 0, where=where, layout=masks)
    if kind.encodes:
        yield Cell(1, length, length, 0, 0, where=where)
        steps = max(min(_FEW_STEPS, longest - PROMPT), 0) if kind is Kind.PAIR else 0
        yield replace(rows, sequence=min(PROMPT, longest) + steps, past=width, steps=steps, judged_last=steps)
        yield Cell(1, 1, 1, 0, 0, where=where)
        return
    yield from (Cell(1, length, 0, 0, 0, where=where), rows, Cell(1, 1, 0, 0, 0, where=where))
    if kind is Kind.CACHED and width > 4:
        # Only a graph that takes any padding accepts several tokens of padded rows after a past.
        ends = (3, 1) if where is Padding.FRONT else (1,)
        yield replace(rows, sequence=sum(ends), past=width - sum(ends), later=ends)
    left = length - PROMPT - _FEW_STEPS
    if kind is Kind.CACHED and left > 0:
        later = (left - _CHUNK, _CHUNK) if left > _CHUNK else (left,)
        yield Cell(1, length - PROMPT, PROMPT, 0, 0, _FEW_STEPS, where, later=later)


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
    kind: Kind, longest: int, where: Padding = Padding.FRONT, *, holes: bool = True, window: int = 0,
    length: int = 0, batch: int = 0,
) -> Iterator[Cell]:  # fmt: skip
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
    end = min(window + BEYOND, longest)
    if kind.encodes or window < 1 or end <= window:
        return
    # A sequence beyond the window, in one pass and in cached steps. Its end is judged.
    first = max(window - BEYOND, 1)
    if end > LONG:
        yield Cell(1, end, 0, 0, 0, where=where, judged_last=end - first)
    if kind is Kind.CACHED and not PROMPT < window <= PROMPT + STEPS - BEYOND:
        yield Cell(1, end - first, first, 0, 0, end - first, where)


def full_cells(kind: Kind, prompt: int, where: Padding = Padding.FRONT) -> Iterator[Cell]:
    """Yield what only a full budget feeds: 16 rows, and a prompt in one pass and through the cache.

    ``prompt`` is its length; 0 means none. Only its last tokens are judged, which read all those before. So its logits
    take no more memory.
    """
    for shape in _SIX_ROWS[kind]:
        right = kind is Kind.MASKED or kind.encodes
        yield _cell((_FULL_ROWS, *shape[1:]), 0, where, Layout.RIGHT if right else Layout.LEFT)
    for shape in _long(kind, prompt) if prompt else ():
        cell = _cell(shape, 0, where, Layout.LEFT)
        yield cell if cell.past and not kind.encodes else replace(cell, judged_last=LONG)


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


def stepped(longest: int, where: Padding = Padding.FRONT, kind: Kind = Kind.CACHED) -> Iterator[Cell]:
    """Yield a prompt with left padding in one row, then single tokens with the cache.

    An encoder-decoder gets padding in the rows of the encoder: on the right, on the left, and in the middle.
    """
    steps = min(STEPS, longest - PROMPT)
    if kind is Kind.PAIR and steps > 0:
        for seed, layout in zip(SEEDS, (Layout.LEFT, Layout.RIGHT, Layout.HOLE), strict=True):
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


# Define one batch that a graph is measured on.

STAGGER = 2
"""By how many positions each row's padding is shorter than that of the row before."""
_CYCLE = 6
"""Rows after which the paddings repeat."""


class Layout(StrEnum):
    """Where the masked positions of a row are."""

    LEFT = "left padding"
    RIGHT = "right padding"
    HOLE = "hole in the mask"
    MIXED = "left padding and holes"
    SIDES = "padding on each side and holes"


_CYCLES = {Layout.MIXED: (Layout.LEFT, Layout.HOLE), Layout.SIDES: (Layout.RIGHT, Layout.LEFT, Layout.HOLE)}
"""Layouts that differ from row to row."""


@record
class Cell:
    """A batch shape: ``past`` tokens are in the cache, and ``padding`` positions of the first row are masked.

    Each later row has `STAGGER` masked positions fewer, up to six rows. ``layout`` says where they are. ``where``
    says where the graph takes padding, if not on the left. After the past, ``steps`` tokens are fed one by one, and
    then pieces of the lengths in ``later``. ``judged_last`` is how many of the last positions are judged; 0
    means all. ``tokens`` are the ids of a batch with one token in each row; without them the ids are random. ``own``
    is a batch that the user gave. With ``embeds`` the batch has random rows in place of ids. With ``blocks`` some
    tokens attend to later ones. For an encoder-decoder ``sequence`` counts decoder tokens and ``past`` encoder tokens.
    """

    batch: int
    sequence: int
    past: int
    padding: int
    seed: int
    steps: int = 0
    where: Padding = Padding.FRONT
    layout: Layout = Layout.LEFT
    judged_last: int = 0
    tokens: tuple[int, ...] = ()
    own: bool = False
    embeds: bool = False
    blocks: bool = False
    later: tuple[int, ...] = ()

    @property
    def length(self) -> int:
        """Tokens of a row, including padding."""
        return self.past + self.sequence

    @property
    def judged(self) -> int:
        """How many of the last positions are judged."""
        return self.judged_last or self.sequence

    @property
    def group(self) -> str:
        """The plot for the cell's errors."""
        padded = str(self.where) if self.where is Padding.BEHIND else str(self.layout)
        groups = (
            (self.own, "own inputs"),
            (self.blocks, "tokens that attend to later ones"),
            (self.embeds, "random rows of inputs_embeds"),
            (self.steps, "cached steps"),
            (self.judged_last == LONG, "all positions"),
            (self.judged_last, "sliding window"),
            (self.tokens, "every token"),
            (self.padding, padded),
            (self.past, "past"),
            (self.sequence == 1, "one token"),
        )
        return next((name for applies, name in groups if applies), "no past")

    def masked(self, row: int, length: int) -> slice:
        """Return the masked positions of a row with ``length`` positions. At least one position stays."""
        width = min(max(self.padding - STAGGER * (row % _CYCLE), 0), length - 1)
        cycle = _CYCLES.get(self.layout, (self.layout,))
        firsts = {Layout.LEFT: 0, Layout.RIGHT: length - width, Layout.HOLE: min(length // 3, length - width)}
        first = firsts[cycle[row % len(cycle)]]
        return slice(first, first + width)

    def seconds(self, weights: int) -> float:
        """Return about how long graph, reference and floor compute, for a model of so many ``weights``.

        One thread of a processor at 2.5 GHz took these times. They decide which batches fit into a budget. So the same
        command feeds the same batches on every machine.
        """
        passes, positions = 1 + len(self.later), self.batch * self.length
        return passes * (0.03 + 3e-9 * weights) + self.steps * (0.01 + 5e-10 * weights) + positions * 1.4e-10 * weights


# Choose the ids that go through the whole graph, each as a sequence of one token.

LEAST = 64
"""Ids that always go through the whole graph, if no lookup of words is visible in it."""
FEW = 16
"""The same, if the rows of all ids were compared."""
_WORK = 2 * 10**11
"""Products of weights and ids that are computed at most, if these are more than `LEAST` ids."""
_LOGITS = 1 << 24
"""Logits that are computed at most, if these are more than `LEAST` ids."""
_ROWS = 256


def spread_ids(vocabulary: int, weights: int, seen: Vocabulary | None, *, few: bool = False) -> tuple[int, ...]:
    """Return ids at even distances, as many as a few seconds allow, and ids that the first nodes treat differently.

    ``vocabulary`` is the number of ids, and ``weights`` that of the checkpoint's elements. With ``few`` the ids are
    those that go through at any budget.
    """
    number = max(LEAST, min(_WORK // max(weights, 1), _LOGITS // vocabulary))
    number = min(vocabulary, (FEW if seen else LEAST) if few else number)
    spread = np.unique(np.linspace(0, vocabulary - 1, number).astype(int)).tolist()
    special = [token for token in (seen.wrong + seen.special if seen else ()) if token < vocabulary][:LEAST]
    return tuple(dict.fromkeys((*spread, *special)))


def token_cells(kind: Kind, ids: tuple[int, ...], where: Padding) -> Iterator[Cell]:
    """Yield batches with one token in each row."""
    past = 1 if kind.encodes else 0
    for start in range(0, len(ids), _ROWS):
        tokens = ids[start : start + _ROWS]
        yield Cell(len(tokens), 1, past, 0, 0, where=where, tokens=tokens)


# Draw the tokens of a batch, and say which of its positions count.


def make_batch(
    cell: Cell, kind: Kind, config: Any, *, types: bool, placed: bool = True, decoder_mask: bool = False
) -> Batch:
    """Return random tokens of the vocabulary of ``config``. Only the cell's seed decides them.

    ``types`` and ``decoder_mask`` say whether the graph takes token types and a mask of the decoder's tokens.
    """
    generator = torch.Generator().manual_seed(1_000_003 * cell.seed + 31 * cell.length + cell.batch)
    rows = int(config.vocab_size)

    def draw(length: int, high: int = rows) -> torch.Tensor:
        return torch.randint(0, high, (cell.batch, length), generator=generator)

    length = cell.past if kind.encodes else cell.length
    ids, mask = _one_token_rows(cell) if cell.tokens and length else draw(length), _mask(cell, length)
    ids[mask == 0] = _padding(config)
    decoder = (_one_token_rows(cell) if cell.tokens else draw(cell.sequence)) if kind.encodes else None
    if decoder is not None and cell.steps:
        # A class may count the positions of a pass without its padding tokens, but those of a step with them.
        decoder[decoder == _padding(config)] = (_padding(config) + 1) % rows
    kinds = int(getattr(config, "type_vocab_size", 0) or 1)
    behind = _mask(cell, cell.sequence) if decoder is not None and decoder_mask else None
    return Batch(ids, mask, decoder, draw(length, kinds) if types else None, placed, behind)


def compared(cell: Cell, kind: Kind, batch: Batch) -> torch.Tensor:
    """Return a mask of the graph's logits (batch × sequence): true where a position is not padding."""
    if kind.encodes:
        full = torch.ones(cell.batch, cell.sequence, dtype=torch.bool)
        return full if batch.decoder_mask is None else batch.decoder_mask.bool()
    mask: torch.Tensor = batch.mask[:, cell.past :].bool()
    return mask


def _one_token_rows(cell: Cell) -> torch.Tensor:
    return torch.tensor(cell.tokens)[:, None]


def _mask(cell: Cell, length: int) -> torch.Tensor:
    mask = torch.ones(cell.batch, length, dtype=torch.int64)
    for row in range(cell.batch):
        mask[row, cell.masked(row, length)] = 0
    return mask


def _padding(config: Any) -> int:
    token = getattr(config, "pad_token_id", None)
    return token if isinstance(token, int) and 0 <= token < int(config.vocab_size) else 0


# Draw rows of `inputs_embeds` that are not rows of the table, as an image gives them.


def with_rows(batch: Batch, cell: Cell, drawn: Bindings) -> Batch:
    """Return the batch with token types. If its cell asks for them, rows, positions and a block are random."""
    if Role.BLOCKS in drawn.inputs:
        batch = replace(batch, blocks=_blocks(batch, cell, drawn.causal))
    if not cell.embeds:
        return batch
    generator = torch.Generator().manual_seed(7919 * cell.length + cell.batch)
    rows = torch.randn((*batch.ids.shape, drawn.width), generator=generator)
    made = replace(batch, embeds=_exact(rows))
    if drawn.axes > 1:
        places = torch.randint(0, cell.length, (drawn.axes, *batch.ids.shape), generator=generator)
        made = replace(made, given_positions=places)
    return made


def _blocks(batch: Batch, cell: Cell, causal: int) -> torch.Tensor:
    """Return types of text. A cell with blocks has one in each row, inside of the tokens of the first pass."""
    types = torch.full_like(batch.ids, causal)
    if not cell.blocks:
        return types
    first = cell.past or cell.length
    types[:, first // 4 : max(first - 1, 2)] = 1 - causal
    return torch.where(batch.mask.bool(), types, causal)


# Draw features of images or sound for an encoder that reads no token ids.

_FEATURE_ROWS = 3
"""Most rows of different features. A batch with more rows repeats them, so that the encoder runs a few times."""


def without_tokens(cell: Cell) -> Cell:
    """Return the cell without tokens of the encoder, and so without their padding."""
    return replace(cell, past=0, padding=0, layout=Layout.LEFT)


def with_features(batch: Batch, cell: Cell, reads: EncoderInput) -> Batch:
    """Return the batch with random features. Cells with the same seed and rows get the same object."""
    return replace(batch, features=_drawn(reads.name, reads.shape, cell.seed, min(cell.batch, _FEATURE_ROWS)))


@lru_cache(maxsize=16)
def _drawn(name: str, shape: tuple[int, ...], seed: int, rows: int) -> Features:
    generator = torch.Generator().manual_seed(104_729 * seed + rows)
    values = torch.randn((rows, *shape), generator=generator)
    return Features(name, _exact(values))


def _exact(values: torch.Tensor) -> torch.Tensor:
    """Round to multiples of 1/64 up to 4, which are exact in fp32, fp16 and bf16."""
    return (values * 64).round().clamp(-255, 255) / 64
