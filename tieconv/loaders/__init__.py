"""Predictions of what each loader does with a model, from the evidence alone: one module for each loader."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from tieconv.architectures.stored_names import missing_layers, surplus_layers
from tieconv.checkpoint.finding import Outcome, Prediction
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.model_files import unlisted_parts

if TYPE_CHECKING:
    from tieconv.loaders.interface import Consumer


_OF_GGUF = "llama.cpp"
"""The loader of GGUF files. Predictions for other loaders are left out unless the user selects only those."""
_FINAL = (Outcome.ERROR, Outcome.UNKNOWN)
"""Outcomes that say nothing about the head, so that they need no word about the layers."""


def predict(inspection: Inspection, selection: Iterable[Consumer] | None = None) -> tuple[Prediction, ...]:
    """Predict what the selected loaders do with the model; ``None`` selects all. Read no file."""
    if selection is None:
        from tieconv.loaders.registry import CONSUMERS

        selection = CONSUMERS
    if inspection.checkpoint.format == "gguf":
        selection = tuple(selection)
        selection = [consumer for consumer in selection if consumer.name == _OF_GGUF] or selection
    predictions = tuple(consumer.predict(inspection) for consumer in selection)
    # A file outside the index may hold the layer.
    missing = "IDX002" if unlisted_parts(inspection.checkpoint) else "STO006"
    rules = {missing: missing_layers, "STO007": surplus_layers} if predictions else {}
    layers = " and ".join(rule for rule, differing in rules.items() if any(differing(inspection)))
    if not layers:
        return predictions
    return tuple(
        replace(row, detail=f"{row.detail}; for the layers see {layers}") if row.outcome not in _FINAL else row
        for row in predictions
    )
