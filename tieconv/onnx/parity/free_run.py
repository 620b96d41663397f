"""Compare greedy generation from the same prompts.

The result is reported but never judged, because one near-tie changes all later tokens.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from tieconv.checkpoint.results.parity_metrics import FreeRun
from tieconv.onnx.parity.batches.batch_shapes import PROMPT
from tieconv.onnx.parity.graph.forward import extended
from tieconv.onnx.parity.passes import Work, pieces, prompt
from tieconv.reference import Batch, Reference

Generate = Callable[[Batch, int], torch.Tensor]


def free_runs(work: Work, generate: Generate) -> torch.Tensor | None:
    """Return the tokens (sequences × steps) of every stepped cell with a short prompt, or ``None`` without one."""
    stepped = [cell for cell in work.cells if cell.steps and pieces(cell, work.kind)[0] == PROMPT]
    runs = [generate(prompt(work, cell), cell.steps) for cell in stepped]
    return torch.cat(runs) if runs else None


def reference_generate(reference: Reference) -> Generate:
    """Return a function for greedy tokens of the reference, with one full pass per token."""

    def generate(batch: Batch, steps: int) -> torch.Tensor:
        tokens = []
        for _ in range(steps):
            tokens.append(reference.logits(batch)[:, -1].argmax(-1))
            batch = extended(batch, tokens[-1])
        return torch.stack(tokens, 1)

    return generate


def agreement(ours: torch.Tensor | None, theirs: torch.Tensor | None) -> FreeRun | None:
    """Return the share of identical sequences, and the mean number of steps before the first change."""
    if ours is None or theirs is None:
        return None
    same = (ours == theirs).long()
    return FreeRun(
        len(same),
        same.shape[1],
        float(same.all(1).double().mean()),
        float(same.cumprod(1).sum(1).double().mean()),
    )
