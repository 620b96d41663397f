"""Define the conditions of the verdict on a quantised graph."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tieconv.checkpoint.results.parity import Gate
from tieconv.checkpoint.results.quantised import Quantised
from tieconv.text import count, shown

BLOCK_LIMIT = 2.5
"""Limit of a block's RMS error divided by that of round to nearest. A zero point that is off by one measures 3.5."""
KL_LIMIT = 2.0
"""Limit of the KL divergence divided by that of the known-good quantiser."""
LEAST_KL = 1e-4
"""A divergence up to which the ratio is not judged, in nats."""
LEAST_NATS = 0.02
"""Nats a token that the graph may lose in any case."""


def weight_gate(figures: Quantised) -> Gate:
    """Return the gate that every quantised matrix is a correct quantisation of a parameter."""
    if figures.unmatched:
        name = shown(figures.unmatched[0])
        explanation = f"the quantised matrix {name} is similar to no tensor of the checkpoint"
        return Gate("quantised_weights", math.inf, BLOCK_LIMIT, False, explanation)
    worst = max(figures.weights, key=lambda weight: weight.worst_block)
    weights = count(len(figures.weights), "quantised weight")
    explanation = f"largest error of a block of {weights} divided by that of round to nearest: {shown(worst.name)}"
    passed = worst.worst_block <= BLOCK_LIMIT
    return Gate("quantised_weights", worst.worst_block, BLOCK_LIMIT, passed, explanation)


def loss_gates(figures: Quantised, positions: int) -> Iterator[Gate]:
    """Yield the gates of top-1 agreement, KL divergence and perplexity, each beside the known-good quantiser's."""
    graph, good = figures.graph, figures.known_good
    assert graph is not None and good is not None
    changed, limit = 1 - graph.top1, _changes(1 - good.top1, positions)
    explanation = f"share of other top-1 tokens than the float reference's; known-good quantiser: {1 - good.top1:.3f}"
    yield Gate("top1", changed, limit, changed <= limit, explanation)
    limit = max(KL_LIMIT * good.kl, LEAST_KL)
    explanation = f"KL divergence from the float reference in nats; known-good quantiser: {good.kl:.2e}"
    yield Gate("kl", graph.kl, limit, graph.kl <= limit, explanation)
    if graph.perplexity is None or good.perplexity is None or figures.reference_perplexity is None:
        return
    ours, theirs = (math.log(loss / figures.reference_perplexity) for loss in (graph.perplexity, good.perplexity))
    limit = max(KL_LIMIT * theirs, LEAST_NATS)
    explanation = (
        f"nats lost a token on {count(figures.tokens, 'token')} ({shown(figures.text)}): "
        f"perplexity {graph.perplexity:.4g}, "
        f"known-good quantiser {good.perplexity:.4g}, float {figures.reference_perplexity:.4g}"
    )
    yield Gate("perplexity", ours, limit, ours <= limit, explanation)


def _changes(good: float, positions: int) -> float:
    """Return the largest share of changed tokens: twice the known-good share, or three standard deviations above it."""
    spread = 3 * math.sqrt(max(good * (1 - good), 1 / positions) / positions)
    return max(2 * good, good + spread)
