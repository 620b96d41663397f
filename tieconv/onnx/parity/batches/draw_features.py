"""Draw features of images or sound for an encoder that reads no token ids."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import torch

from tieconv.onnx.parity.batches.cell import Cell, Layout
from tieconv.reference import Batch, EncoderInput, Features

_STEP, _MOST = 64, 255
_ROWS = 3
"""Most rows of different features. A batch with more rows repeats them, so that the encoder runs a few times."""


def without_tokens(cell: Cell) -> Cell:
    """Return the cell without tokens of the encoder, and so without their padding."""
    return replace(cell, past=0, padding=0, layout=Layout.LEFT)


def with_features(batch: Batch, cell: Cell, reads: EncoderInput) -> Batch:
    """Return the batch with random features. Cells with the same seed and rows get the same object."""
    return replace(batch, features=_drawn(reads.name, reads.shape, cell.seed, min(cell.batch, _ROWS)))


@lru_cache(maxsize=16)
def _drawn(name: str, shape: tuple[int, ...], seed: int, rows: int) -> Features:
    generator = torch.Generator().manual_seed(104_729 * seed + rows)
    values = torch.randn((rows, *shape), generator=generator)
    # multiples of 1/64 up to 4 are exact in fp32, fp16 and bf16
    return Features(name, (values * _STEP).round().clamp(-_MOST, _MOST) / _STEP)
