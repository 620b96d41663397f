"""Predictions of what each loader does with a model, from the evidence alone: one module for each loader."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tieconv.checkpoint.finding import Prediction
from tieconv.checkpoint.inspection import Inspection

if TYPE_CHECKING:
    from tieconv.loaders.interface import Consumer


_OF_GGUF = "llama.cpp"
"""The loader of GGUF files. Predictions for other loaders are left out unless the user selects only those."""


def predict(inspection: Inspection, selection: Iterable[Consumer] | None = None) -> tuple[Prediction, ...]:
    """Predict what the selected loaders do with the model; ``None`` selects all. Read no file."""
    if selection is None:
        from tieconv.loaders.registry import CONSUMERS

        selection = CONSUMERS
    if inspection.checkpoint.format == "gguf":
        selection = tuple(selection)
        selection = [consumer for consumer in selection if consumer.name == _OF_GGUF] or selection
    return tuple(consumer.predict(inspection) for consumer in selection)
