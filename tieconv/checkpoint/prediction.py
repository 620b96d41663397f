"""What a loader will do with a model's output embedding, as a prediction."""

from __future__ import annotations

from enum import StrEnum

from tieconv.checkpoint.value_type import record


class Outcome(StrEnum):
    """What becomes of the output embedding once the model is loaded."""

    TIED = "tied"
    UNTIED = "untied"
    RANDOM = "random"
    DISCARDED = "discarded"
    ERROR = "error"
    UNKNOWN = "unknown"


@record
class Prediction:
    """One loader's outcome for one model.

    ``measured`` is true where the prediction's module is tested against the loader itself; ``cited`` names the source
    file, issue or release that the prediction follows. ``tensors`` are the names that the outcome is about, ``dropped``
    the stored head biases whose values are not used.
    """

    name: str
    version: str
    outcome: Outcome
    detail: str
    measured: bool
    cited: str
    tensors: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, object]:
        """Its entry in `tieconv.inspect/1`."""
        return {
            "name": self.name,
            "version": self.version,
            "outcome": str(self.outcome),
            "detail": self.detail,
            "measured": self.measured,
            "cited": self.cited,
            "tensors": list(self.tensors),
            "dropped": list(self.dropped),
        }
