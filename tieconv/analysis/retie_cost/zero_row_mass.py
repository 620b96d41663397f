"""Estimate the probability of rows of zeros, whose logit is 0 and not −∞."""

from __future__ import annotations

import numpy as np

from tieconv.analysis.model.last_norm import Final
from tieconv.analysis.model.tables import Array, Table, spans

STATES = 128
"""Number of random hidden states in the estimate."""


def zero_mass(table: Table, final: Final, bias: Array | None, zero: Array, seed: int = 0) -> tuple[float, float]:
    """Return (mean, standard error) of the probability of the rows marked in ``zero``.

    The hidden states are random directions of the norm's length. Real hidden states may raise or lower all other logits
    together, so the true figure needs a text.
    """
    states = np.random.default_rng(seed).standard_normal((table.width, STATES))
    states *= np.sqrt(table.width) / np.linalg.norm(states, axis=0)
    hidden = states * final.gains[:, None]
    if final.shift is not None:
        hidden += final.shift[:, None]
    hidden = (final.scale * hidden).astype("f4")
    whole, part = np.full(STATES, -np.inf), np.full(STATES, -np.inf)
    for start, stop in spans(table.rows, table.width):
        logits = np.nan_to_num(table.values(start, stop)).astype("f4") @ hidden
        if final.capped:
            logits = final.cap * np.tanh(logits / final.cap)
        if bias is not None:
            logits += bias[start:stop, None]
        whole = np.logaddexp(whole, np.logaddexp.reduce(logits.astype("f8"), axis=0))
        marked = logits[zero[start:stop]].astype("f8")
        if len(marked):
            part = np.logaddexp(part, np.logaddexp.reduce(marked, axis=0))
    share = np.exp(part - whole)
    return float(share.mean()), float(share.std(ddof=1) / np.sqrt(STATES))
