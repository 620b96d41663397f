"""What a consumer is: one loader at a range of its versions."""

from __future__ import annotations

from collections.abc import Callable

from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.prediction import Outcome, Prediction
from tieconv.checkpoint.value_type import record

Version = tuple[int, ...]


@record
class Verdict:
    """What a loader does with one model; the fields are those of `Prediction`."""

    outcome: Outcome
    detail: str
    tensors: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()


@record
class Consumer:
    """A loader whose behaviour is the same from version ``since`` to below ``before`` (``None``: to the newest).

    ``judge`` is pure; ``measured`` says that it is tested against the loader itself, ``cited`` what it follows.
    """

    name: str
    version: str
    since: Version
    before: Version | None
    measured: bool
    cited: str
    judge: Callable[[Inspection], Verdict]

    def predict(self, inspection: Inspection) -> Prediction:
        """What this loader does with the model."""
        found = self.judge(inspection)
        return Prediction(
            name=self.name,
            version=self.version,
            outcome=found.outcome,
            detail=found.detail,
            measured=self.measured,
            cited=self.cited,
            tensors=found.tensors,
            dropped=found.dropped,
        )


def unknown(detail: str) -> Verdict:
    """Nothing is claimed, because of ``detail``."""
    return Verdict(Outcome.UNKNOWN, detail)


def error(detail: str, *tensors: str) -> Verdict:
    """The loader stops."""
    return Verdict(Outcome.ERROR, detail, tensors)
