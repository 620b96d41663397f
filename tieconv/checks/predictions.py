"""What the rules about loaders share: predictions told alike become one finding."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.prediction import Outcome, Prediction
from tieconv.checks.evidence import listed


def grouped(inspection: Inspection, outcome: Outcome) -> Iterator[list[Prediction]]:
    """The predictions of an outcome, those about the same tensors together."""
    if inspection.family.output_head is None:
        return
    by_tensors: dict[tuple[str, ...], list[Prediction]] = {}
    for prediction in inspection.consumers:
        if prediction.outcome is outcome:
            by_tensors.setdefault(prediction.tensors, []).append(prediction)
    yield from by_tensors.values()


def loaders(predictions: Iterable[Prediction]) -> str:
    """``transformers 4.57 and vllm <0.29``."""
    return listed(f"{prediction.name} {prediction.version}" for prediction in predictions)


def message(predictions: list[Prediction]) -> str:
    """The loaders, and the first one's sentence; each sentence where no tensors say that they mean the same."""
    if predictions[0].tensors:
        return f"{loaders(predictions)}: {predictions[0].detail}"
    by_detail: dict[str, list[Prediction]] = {}
    for prediction in predictions:
        by_detail.setdefault(prediction.detail, []).append(prediction)
    return "; ".join(f"{loaders(alike)}: {detail}" for detail, alike in by_detail.items())
