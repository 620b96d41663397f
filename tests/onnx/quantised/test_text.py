"""The rows of a quantised graph in the report of parity."""

from __future__ import annotations

from tieconv.checkpoint.results.parity import Loss, Quantised, QuantisedWeight
from tieconv.reporters.text.parity_text import quantised_facts


def test_the_largest_error_is_beside_that_of_the_known_good_quantiser() -> None:
    """The row names the weight's own pair of errors, not the largest of each."""
    weights = tuple(
        QuantisedWeight(name, (name,), "MatMulNBits", 4, 32, True, error, good, 1.0)
        for name, error, good in (("a", 0.01, 0.9), ("b", 0.07, 0.06))
    )
    rows = dict(quantised_facts(Quantised(weights, (), Loss(0.5, 0.25), None)))
    assert rows["quantised"] == "2 weights: 2 of MatMulNBits with 4 bits"
    assert rows["error"] == "7.00e-02 at most (relative RMS), 6.00e-02 by the known-good quantiser"
    assert rows["loss"] == "top-1 50.0%, KL 2.50e-01"
