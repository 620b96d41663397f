"""Draw the tokens of a batch, and say which of its positions count."""

from __future__ import annotations

from typing import Any

import torch

from tieconv.onnx.parity.batches.cell import Cell
from tieconv.onnx.parity.graph.bindings import Kind
from tieconv.reference import Batch


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
