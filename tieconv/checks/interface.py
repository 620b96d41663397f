"""The interface of a rule."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tieconv.checkpoint.finding import Finding, Level, Remedy
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.value_type import record


@record
class Rule:
    """One kind of fault that tieconv reports.

    ``documentation`` is the docstring of the rule's module. ``level`` is the level of most of its findings.
    """

    code: str
    name: str
    level: Level
    documentation: str
    find: Callable[[Inspection], Iterable[Finding]]

    @property
    def summary(self) -> str:
        """The fault that the rule reports, in one line."""
        return self.documentation.partition("\n")[0].rstrip(".")

    def finding(
        self,
        message: str,
        tensors: Iterable[str] = (),
        *,
        level: Level | None = None,
        remedy: Remedy | None = None,
    ) -> Finding:
        """Return a finding of this rule, at the rule's level unless ``level`` is given."""
        return Finding(self.code, level or self.level, message, tuple(tensors), remedy)
