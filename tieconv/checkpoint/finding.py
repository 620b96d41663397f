"""What a rule says about a model, and the command that mends it."""

from __future__ import annotations

from enum import StrEnum

from tieconv.checkpoint.value_type import record
from tieconv.text import command, shell_word

REVIEW_FIRST = "(review first: changes the model's outputs)"
"""What is said of every remedy and every plan that may change the model."""


class Level(StrEnum):
    """How bad a finding is."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@record
class Action:
    """A writing command as data: ``verb`` such as ``retie`` or ``bias unify``, its options as flags and values.

    The value of a bare flag is empty.
    """

    verb: str
    source: str
    options: tuple[tuple[str, str], ...] = ()

    @property
    def command(self) -> str:
        """The command to copy to a shell, with OUT for the path that the user chooses."""
        options = [word for flag, value in self.options for word in (flag, *((shell_word(value),) if value else ()))]
        return command(self.verb, self.source, *options, "-o", _out(self.source))


def _out(source: str) -> str:
    """OUT beside a model in which the user stands: inside it nothing is written."""
    steps = [step for step in source.split("/") if step not in ("", ".")]
    if steps and steps[-1].endswith(".index.json"):
        del steps[-1]
    inside = not source.startswith("/") and all(step == ".." for step in steps)
    return "../" * (len(steps) + 1) + "OUT" if inside else "OUT"


@record
class Remedy:
    """The next command; ``safe`` where it provably keeps the function. ``action`` is the command as data."""

    command: str
    safe: bool
    action: Action | None = None


@record
class Finding:
    """One thing that a rule says about an inspection."""

    rule: str
    level: Level
    message: str
    tensors: tuple[str, ...] = ()
    remedy: Remedy | None = None

    def to_dict(self) -> dict[str, object]:
        """One entry of ``findings``."""
        remedy = {"command": self.remedy.command, "safe": self.remedy.safe} if self.remedy else None
        return {
            "rule": self.rule,
            "level": str(self.level),
            "message": self.message,
            "tensors": list(self.tensors),
            "remedy": remedy,
        }
