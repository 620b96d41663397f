"""A warning of a plan, and the tensors that it speaks of."""

from __future__ import annotations

from collections.abc import Iterable

from tieconv.checkpoint.value_type import record


@record
class Note:
    """A warning that speaks of changes which the user asked for.

    ``tensors`` are the names of the stored tensors or absent parameters, as the file spells them before the plan, whose
    values may change. ``releases`` are the releases of transformers that the warning is about, all where it is empty.
    """

    text: str
    tensors: tuple[str, ...] = ()
    releases: tuple[str, ...] = ()

    def covers(self, release: str, names: Iterable[str]) -> bool:
        """Return whether the warning speaks of one of ``names`` in a release."""
        return (not self.releases or release in self.releases) and not set(self.tensors).isdisjoint(names)


Notes = tuple[str | Note, ...]
"""Warnings of a planner; a text alone speaks of no change."""
