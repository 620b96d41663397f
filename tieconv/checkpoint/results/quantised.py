"""The figures of a quantised graph, each beside those of a known-good quantiser."""

from __future__ import annotations

from tieconv.checkpoint.value_type import record


@record
class QuantisedWeight:
    """A quantised matrix of the graph and the parameters of the checkpoint that it quantises.

    ``block`` elements share a scale. ``error`` is the relative RMS error of the dequantised matrix.
    ``known_good_error`` is that of round to nearest with the same scheme. ``worst_block`` is the largest ratio of the
    two over all blocks.
    """

    name: str
    parameters: tuple[str, ...]
    operator: str
    bits: int
    block: int
    symmetric: bool
    error: float
    known_good_error: float
    worst_block: float


@record
class Loss:
    """What quantisation costs against the float reference.

    ``top1`` is the share of positions with the reference's top-1 token, ``kl`` the mean KL divergence in nats.
    ``perplexity`` is ``None`` for a model that does not predict the next token.
    """

    top1: float
    kl: float
    perplexity: float | None = None


@record
class Quantised:
    """The quantised matrices, and the losses of the graph and of the known-good quantiser.

    ``reference_perplexity`` is that of the float reference on the same ``tokens`` tokens of ``text``. ``unmatched`` are
    the quantised matrices that are similar to no parameter.
    """

    weights: tuple[QuantisedWeight, ...]
    unmatched: tuple[str, ...]
    graph: Loss | None = None
    known_good: Loss | None = None
    reference_perplexity: float | None = None
    tokens: int = 0
    text: str = ""
    notes: tuple[str, ...] = ()
