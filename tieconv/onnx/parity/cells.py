"""Define the batches that a graph is measured on: shapes times seeds, and a long sequence of cached steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from tieconv.checkpoint.value_type import record
from tieconv.onnx.parity.graph.bindings import Kind, Padding
from tieconv.reference import Batch

SEEDS = (0, 1, 2)
STEPS = 32
PROMPT = 5


@record
class Cell:
    """A batch shape: ``past`` tokens are in the cache, and ``padding`` is on the left of the first row.

    ``where`` says where the graph takes padding, if not on the left. For an encoder-decoder ``sequence`` counts decoder
    tokens and ``past`` encoder tokens.
    """

    batch: int
    sequence: int
    past: int
    padding: int
    seed: int
    steps: int = 0
    where: Padding = Padding.FRONT

    @property
    def length(self) -> int:
        """Tokens of a row, including padding."""
        return self.past + self.sequence

    @property
    def group(self) -> str:
        """The plot for the cell's errors."""
        if self.steps:
            return "cached steps"
        if self.padding:
            return str(self.where)
        if self.past:
            return "past"
        return "one token" if self.sequence == 1 else "no past"


_CACHED = ((2, 3, 7, 2), (1, 1, 7, 0), (1, 5, 0, 0), (3, 1, 11, 4), (4, 6, 0, 3), (1, 1, 0, 0), (2, 2, 1, 0),
           (2, 16, 0, 5), (1, 8, 24, 0))  # fmt: skip
_PLAIN = ((2, 10, 0, 2), (1, 8, 0, 0), (1, 5, 0, 0), (3, 12, 0, 4), (4, 6, 0, 3), (1, 1, 0, 0), (2, 1, 0, 0),
          (2, 16, 0, 5), (1, 32, 0, 0))  # fmt: skip
_SEQ2SEQ = ((2, 3, 7, 2), (1, 1, 7, 0), (1, 5, 1, 0), (3, 1, 11, 4), (4, 6, 6, 3), (1, 1, 1, 0), (2, 2, 1, 0),
            (2, 16, 16, 5), (1, 8, 24, 0))  # fmt: skip
_SHAPES = {Kind.CACHED: _CACHED, Kind.PLAIN: _PLAIN, Kind.MASKED: _PLAIN, Kind.SEQ2SEQ: _SEQ2SEQ}


def cells(kind: Kind, longest: int, where: Padding = Padding.FRONT) -> Iterator[Cell]:
    """Yield nine shapes with three seeds each. None exceeds ``longest`` tokens, the model's limit.

    If padding is not on the left, several tokens after a past are in a batch of one row.
    """
    for batch, sequence, past, padding in _SHAPES[kind]:
        alone = where is not Padding.FRONT and past > 0 and sequence > 1
        full = alone or where is Padding.NONE
        for seed in SEEDS:
            cell = Cell(1 if alone else batch, sequence, past, 0 if full else padding, seed, where=where)
            if max(cell.past, cell.sequence, 0 if kind is Kind.SEQ2SEQ else cell.length) <= longest:
                yield cell


def stepped(longest: int, where: Padding = Padding.FRONT) -> Iterator[Cell]:
    """Yield a prompt with left padding in one row, then single tokens with the cache."""
    steps = min(STEPS, longest - PROMPT)
    for seed in SEEDS if steps > 0 else ():
        yield Cell(2, steps, PROMPT, 0 if where is Padding.NONE else 2, seed, steps, where)


def make_batch(cell: Cell, kind: Kind, config: Any, *, types: bool, placed: bool = True) -> Batch:
    """Return random tokens of the vocabulary of ``config``. Only the cell's seed decides them."""
    generator = torch.Generator().manual_seed(1_000_003 * cell.seed + 31 * cell.length + cell.batch)
    rows = int(config.vocab_size)

    def draw(length: int, high: int = rows) -> torch.Tensor:
        return torch.randint(0, high, (cell.batch, length), generator=generator)

    length = cell.past if kind is Kind.SEQ2SEQ else cell.length
    ids, mask = draw(length), torch.ones(cell.batch, length, dtype=torch.int64)
    mask[0, : cell.padding] = 0
    ids[0, : cell.padding] = _padding(config)
    decoder = draw(cell.sequence) if kind is Kind.SEQ2SEQ else None
    kinds = int(getattr(config, "type_vocab_size", 0) or 1)
    return Batch(ids, mask, decoder, draw(length, kinds) if types else None, placed)


def compared(cell: Cell, kind: Kind, batch: Batch) -> torch.Tensor:
    """Return a mask of the graph's logits (batch × sequence): true where a position is not padding."""
    if kind is Kind.SEQ2SEQ:
        return torch.ones(cell.batch, cell.sequence, dtype=torch.bool)
    mask: torch.Tensor = batch.mask[:, cell.past :].bool()
    return mask


def _padding(config: Any) -> int:
    token = getattr(config, "pad_token_id", None)
    return token if isinstance(token, int) and 0 <= token < int(config.vocab_size) else 0
