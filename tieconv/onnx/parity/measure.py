"""Measure errors of logits against the reference: figures of one case, pools of many, histograms."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch

from tieconv.checkpoint.results.parity import Histogram
from tieconv.checkpoint.results.parity_metrics import Figures

START, WIDTH, BINS = -12.0, 0.25, 56
"""Bins of histograms: |error| / RMS of the logits, from 1e-12 to 1e2 in quarters of a decade."""
_ROWS = 16


@dataclass
class Errors:
    """Sums over positions that give `Figures`. `add` takes logits (positions × vocabulary)."""

    positions: int = 0
    values: int = 0
    squares: float = 0.0
    signal: float = 0.0
    max_abs: float = 0.0
    flips: int = 0
    flip_margin: float = 0.0
    kl: float = 0.0
    counts: list[int] = field(default_factory=lambda: [0] * BINS)

    def add(self, reference: torch.Tensor, got: torch.Tensor) -> None:
        """Add positions. A value that is not finite counts as an infinite error if the reference's value is finite."""
        scale = _rms(_centred(reference.double()))
        for first in range(0, len(reference), _ROWS):
            self._add(reference[first : first + _ROWS].double(), got[first : first + _ROWS].double(), scale)

    def _add(self, ref: torch.Tensor, got: torch.Tensor, scale: float) -> None:
        error = torch.where(got == ref, torch.zeros_like(ref), got - ref).nan_to_num(math.inf, math.inf, math.inf).abs()
        self.positions += len(ref)
        self.values += ref.numel()
        self.squares += float(error.square().sum())
        self.signal += float(_centred(ref).square().sum())
        self.max_abs = max(self.max_abs, float(error.max()))
        best, argmax = ref.argmax(-1, keepdim=True), got.nan_to_num(-math.inf).argmax(-1, keepdim=True)
        margin = (ref.gather(1, best) - ref.gather(1, argmax))[best != argmax]
        self.flips += len(margin)
        self.flip_margin = max(self.flip_margin, float(margin.max()) if len(margin) else 0.0)
        log = ref.log_softmax(-1)
        divergence = torch.where(log.exp() > 0, log.exp() * (log - got.log_softmax(-1)), torch.zeros_like(log))
        self.kl += float(divergence.sum())
        places = ((error / max(scale, 1e-300)).clamp(min=10**START).log10() - START).div(WIDTH).floor()
        counts = torch.bincount(places.clamp(0, BINS - 1).long().flatten(), minlength=BINS)
        self.counts = [ours + more for ours, more in zip(self.counts, counts.tolist(), strict=True)]

    def include(self, part: Errors) -> None:
        """Add the positions of another sum."""
        self.positions += part.positions
        self.values += part.values
        self.squares += part.squares
        self.signal += part.signal
        self.max_abs = max(self.max_abs, part.max_abs)
        self.flips += part.flips
        self.flip_margin = max(self.flip_margin, part.flip_margin)
        self.kl += part.kl
        self.counts = [ours + more for ours, more in zip(self.counts, part.counts, strict=True)]

    @property
    def scale(self) -> float:
        """The RMS of the reference without its mean."""
        return math.sqrt(self.signal / max(self.values, 1))

    def figures(self) -> Figures:
        rms = math.sqrt(self.squares / max(self.values, 1))
        return Figures(
            self.positions,
            rms,
            rms / self.scale if self.scale else math.inf if rms else 0.0,
            self.max_abs,
            self.flips,
            self.flip_margin,
            max(self.kl, 0.0) / max(self.positions, 1),
        )


def pool(parts: Iterable[Errors]) -> Errors:
    """Return the sums of all parts."""
    whole = Errors()
    for part in parts:
        whole.include(part)
    return whole


def ratios(graph: Errors, floor: Errors, precision: str) -> tuple[float, float]:
    """Return the graph's RMS error and largest error, each divided by the floor's.

    The floor is at least one rounding unit of the logits, because no graph can be more exact. That unit is the
    precision's eps times the RMS of the logits.
    """
    least = float(torch.finfo(getattr(torch, precision)).eps) * graph.scale
    graph_figures, floor_figures = graph.figures(), floor.figures()
    return _over(graph_figures.rms, max(floor_figures.rms, least)), _over(
        graph_figures.max_abs, max(floor_figures.max_abs, least)
    )


def _over(value: float, floor: float) -> float:
    if not math.isfinite(value):
        return math.inf
    return value / floor if floor else math.inf if value else 0.0


def histogram(group: str, graph: Errors, floor: Errors) -> Histogram:
    """Return the two distributions of one group of cases."""
    return Histogram(group, START, WIDTH, tuple(graph.counts), tuple(floor.counts))


def _centred(logits: torch.Tensor) -> torch.Tensor:
    """Return the logits minus each position's mean, which softmax ignores. Masked logits (-inf) count as the mean."""
    finite = torch.where(logits.isfinite(), logits, torch.nan)
    return (finite - finite.nanmean(-1, keepdim=True)).nan_to_num(0.0)


def _rms(values: torch.Tensor) -> float:
    return float(values.square().mean().sqrt()) if values.numel() else 0.0
