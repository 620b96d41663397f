"""Which end of the model moves the tied table: its gradient as an input and as an output share, in weight space.

The head becomes a parameter of its own with the same values, so one backward pass gives both parts, and their sum is
the gradient of the tied table exactly. Measured on activations the input share would come out too small.
"""

from __future__ import annotations

from typing import Any

from tieconv.checkpoint.results.analysis import Measure, Section
from tieconv.reference import Apart

TITLE = "Gradients"


def split(reference: Apart) -> tuple[Any, Any]:
    """(input part, output part) of the gradient of the mean loss over the text: two tensors (V, d)."""
    torch = reference.torch
    parts = [torch.nn.Parameter(table.detach().clone()) for table in (reference.embed, reference.head)]
    with reference.tables(*parts), torch.enable_grad():
        for window in reference.windows:
            log_p = reference.log_probabilities(window)
            loss = -log_p.gather(-1, reference.targets(window)[:, None]).mean() / len(reference.windows)
            loss.backward()
    return tuple(torch.zeros_like(part) if part.grad is None else part.grad for part in parts)


def gradients_section(reference: Apart, *, tied: bool) -> Section:
    """The share of the output end, and whether both ends pull the same way."""
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
    sentence = f"On this text the output end makes {share:.0%} of the gradient of the {tables}."
    return Section(TITLE, sentence, tuple(measures))
