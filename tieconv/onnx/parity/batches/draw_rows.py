"""Draw rows of `inputs_embeds` that are not rows of the table, as an image gives them."""

from __future__ import annotations

from dataclasses import replace

import torch

from tieconv.checkpoint.value_type import record
from tieconv.onnx.parity.batches.cell import Cell
from tieconv.reference import Batch

_STEP, _MOST = 64, 255


@record
class Drawn:
    """What to draw: the ``width`` of a row, and the numbers of a position (``axes``, 3 with M-RoPE).

    ``blocks`` says whether token types decide what a token attends to; ``causal`` is the type of a token of text.
    """

    width: int
    axes: int
    blocks: bool
    causal: int


def with_rows(batch: Batch, cell: Cell, drawn: Drawn) -> Batch:
    """Return the batch with token types. If its cell asks for them, rows, positions and a block are random."""
    if drawn.blocks:
        batch = replace(batch, blocks=_blocks(batch, cell, drawn.causal))
    if not cell.embeds:
        return batch
    generator = torch.Generator().manual_seed(7919 * cell.length + cell.batch)
    rows = torch.randn((*batch.ids.shape, drawn.width), generator=generator)
    # multiples of 1/64 up to 4 are exact in fp32, fp16 and bf16
    made = replace(batch, embeds=(rows * _STEP).round().clamp(-_MOST, _MOST) / _STEP)
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
