"""Predictions for the rules about loaders: those about the same tensors become one finding."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.prediction import Outcome, Prediction
from tieconv.checks.evidence import listed


def grouped(inspection: Inspection, outcome: Outcome) -> Iterator[list[Prediction]]:
    """Yield the predictions of an outcome, grouped by their tensors."""
    if inspection.family.output_head is None:
        return
    by_tensors: dict[tuple[str, ...], list[Prediction]] = {}
    for prediction in inspection.consumers:
        if prediction.outcome is outcome:
            by_tensors.setdefault(prediction.tensors, []).append(prediction)
    yield from by_tensors.values()


def loaders(predictions: Iterable[Prediction]) -> str:
    """Return names and versions, such as ``transformers 4.57 and vllm <0.29``, and what no test runs."""
    return listed(
        f"{prediction.name} {prediction.version}{' (unverified)' if _unverified(prediction) else ''}"
        for prediction in predictions
    )


def _unverified(prediction: Prediction) -> bool:
    return not prediction.measured and prediction.outcome is not Outcome.UNKNOWN


def message(predictions: list[Prediction]) -> str:
    """Return the loaders with the first detail, or with each detail if the predictions have no tensors.

    Predictions about the same tensors mean the same, so one detail is enough.
    """
    if predictions[0].tensors:
        return f"{loaders(predictions)}: {predictions[0].detail}"
    by_detail: dict[str, list[Prediction]] = {}
    for prediction in predictions:
        by_detail.setdefault(prediction.detail, []).append(prediction)
    return "; ".join(f"{loaders(alike)}: {detail}" for detail, alike in by_detail.items())
