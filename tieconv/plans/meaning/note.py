"""Define a plan's note and the tensors that it is about."""

from __future__ import annotations

from collections.abc import Iterable

from tieconv.checkpoint.value_type import record


@record
class Note:
    """A note about changes that the user asked for.

    ``tensors`` are the stored tensors or absent parameters whose values may change, with their names before the plan.
    ``releases`` are the releases of transformers that the note is about. Empty means all releases.
    """

    text: str
    tensors: tuple[str, ...] = ()
    releases: tuple[str, ...] = ()

    def covers(self, release: str, names: Iterable[str]) -> bool:
        """Return whether the note is about one of ``names`` in a release."""
        return (not self.releases or release in self.releases) and not set(self.tensors).isdisjoint(names)


Notes = tuple[str | Note, ...]
"""The notes of a planner. A note that is a ``str`` is about no change of values."""
