"""Predict what a loader does with a model's output embedding."""

from __future__ import annotations

from enum import StrEnum

from tieconv.checkpoint.value_type import record


class Outcome(StrEnum):
    """The state of the output embedding after loading."""

    TIED = "tied"
    UNTIED = "untied"
    RANDOM = "random"
    DISCARDED = "discarded"
    ERROR = "error"
    UNKNOWN = "unknown"


@record
class Prediction:
    """One loader's outcome for one model.

    ``measured`` is true if tests compare the prediction's module with the loader itself. ``basis`` names the releases
    that they ran, or is ``read``. ``cited`` is the source file, issue or release that the prediction follows.
    ``tensors`` are the names that the outcome is about. ``dropped`` are the stored head biases whose values the loader
    does not use.
    """

    name: str
    version: str
    outcome: Outcome
    detail: str
    measured: bool
    cited: str
    basis: str
    tensors: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, object]:
        """Return its entry in `tieconv.inspect/1`."""
        return {
            "name": self.name,
            "version": self.version,
            "outcome": str(self.outcome),
            "detail": self.detail,
            "measured": self.measured,
            "basis": self.basis,
            "cited": self.cited,
            "tensors": list(self.tensors),
            "dropped": list(self.dropped),
        }
