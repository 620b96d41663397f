"""What a rule is."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tieconv.checkpoint.finding import Finding, Level, Remedy
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.value_type import record


@record
class Rule:
    """One thing that can be wrong.

    ``documentation`` is the docstring of the module that defines the rule, ``level`` the one that most of its
    findings have.
    """

    code: str
    name: str
    level: Level
    documentation: str
    find: Callable[[Inspection], Iterable[Finding]]

    @property
    def summary(self) -> str:
        """What the rule reports, in one line."""
        return self.documentation.partition("\n")[0].rstrip(".")

    def finding(
        self,
        message: str,
        tensors: Iterable[str] = (),
        *,
        level: Level | None = None,
        remedy: Remedy | None = None,
    ) -> Finding:
        """A finding of this rule, at its own level unless another one is given."""
        return Finding(self.code, level or self.level, message, tuple(tensors), remedy)
