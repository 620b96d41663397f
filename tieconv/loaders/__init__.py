"""What each loader will do with a model: predictions from evidence, one module a loader."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.prediction import Prediction

if TYPE_CHECKING:
    from tieconv.loaders.interface import Consumer


_OF_GGUF = "llama.cpp"
"""The loader that GGUF files are made for; of others nothing is said unless they alone are asked for."""


def predict(inspection: Inspection, selection: Iterable[Consumer] | None = None) -> tuple[Prediction, ...]:
    """What the selected loaders (``None``: all that are known) will do with the model. Pure: nothing is read."""
    if selection is None:
        from tieconv.loaders.registry import CONSUMERS

        selection = CONSUMERS
    if inspection.checkpoint.format == "gguf":
        selection = tuple(selection)
        selection = [consumer for consumer in selection if consumer.name == _OF_GGUF] or selection
    return tuple(consumer.predict(inspection) for consumer in selection)
