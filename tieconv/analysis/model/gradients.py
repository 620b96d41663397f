"""Split the gradient of the tied table into its input part and its output part, in weight space.

The head becomes a separate parameter with the same values, so one backward pass gives both parts. Their sum is exactly
the gradient of the tied table. A measurement on activations would give a smaller input part.
"""

from __future__ import annotations

from typing import Any

from tieconv.checkpoint.results.analysis import Measure, Section
from tieconv.reference import Apart

TITLE = "Gradients"


def split(reference: Apart) -> tuple[Any, Any]:
    """Return the gradient of the mean loss over the text, split into input and output part: two tensors (V, d)."""
    torch = reference.torch
    parts = [torch.nn.Parameter(table.detach().clone()) for table in (reference.embed, reference.head)]
    with reference.tables(*parts), torch.enable_grad():
        for window in reference.windows:
            log_p = reference.log_probabilities(window)
            loss = -log_p.gather(-1, reference.targets(window)[:, None]).mean() / len(reference.windows)
            loss.backward()
    return tuple(torch.zeros_like(part) if part.grad is None else part.grad for part in parts)


def gradients_section(reference: Apart, *, tied: bool) -> Section:
    """Return the section: the share of the output part, and the cosine of the two parts."""
    into, out = split(reference)
    length_in, length_out = float(into.norm()), float(out.norm())
    whole = length_in + length_out
    if not whole:
        return Section(TITLE, "The gradient is zero.", ())
    share, n = length_out / whole, reference.predicted
    measures = [
        Measure("share of the output end", share, floor=0.5, n=n, says="|g_out| / (|g_in| + |g_out|); 0.5 is even"),
        Measure("gradient of the input end", length_in, n=n),
        Measure("gradient of the output end", length_out, n=n),
    ]
    if into.shape == out.shape and length_in and length_out:
        cosine = float((into * out).sum()) / (length_in * length_out)
        measures.append(Measure("cosine of the two", cosine, floor=0.0, n=n))
    tables = "tied table" if tied else "two tables"
    sentence = f"On this text the output head contributes {share:.0%} of the gradient of the {tables}."
    return Section(TITLE, sentence, tuple(measures))
