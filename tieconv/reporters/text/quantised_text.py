"""Render the figures of a quantised graph as rows of a parity report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tieconv.checkpoint.results.quantised import Loss, Quantised
from tieconv.text import count, shown


def quantised_facts(figures: Quantised) -> Iterator[tuple[str, str]]:
    """Yield how the weights are quantised, and what the graph and the known-good quantiser lose."""
    forms = Counter(f"of {weight.operator} with {weight.bits} bits" for weight in figures.weights)
    listed = ", ".join(f"{number} {shown(form)}" for form, number in forms.items())
    errors = ((weight.error, weight.known_good_error) for weight in figures.weights)
    worst, known_good = max(errors, default=(0.0, 0.0))
    yield "quantised", f"{count(len(figures.weights), 'weight')}: {listed}"
    yield "error", f"{worst:.2e} at most (relative RMS), {known_good:.2e} by the known-good quantiser"
    for name, loss in (("loss", figures.graph), ("known good", figures.known_good)):
        if loss is not None:
            yield name, _loss(loss)
    if figures.reference_perplexity is not None:
        source = f"{count(figures.tokens, 'token')}, {shown(figures.text)}"
        yield "perplexity", f"{figures.reference_perplexity:.4g} of the float reference on {source}"


def _loss(loss: Loss) -> str:
    perplexity = "" if loss.perplexity is None else f", perplexity {loss.perplexity:.4g}"
    return f"top-1 {loss.top1:.1%}, KL {loss.kl:.2e}{perplexity}"
