"""A rule's statement about a model, and the command that fixes the problem."""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar

from tieconv.checkpoint.value_type import Choice, Listed, record
from tieconv.text import OUT, Hint, call, shown

REVIEW_FIRST = "(review first: may change the model's outputs)"
"""What is said of every remedy and every plan that may change the model."""


class Level(Choice):
    """The severity of a finding."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@record
class Action:
    """A command that writes, as data: ``verb`` such as ``retie`` or ``bias unify``, its options by their keywords."""

    verb: str
    source: str
    options: tuple[tuple[str, object], ...] = ()

    @property
    def conditional(self) -> bool:
        """Whether the planner compares more than a rule does, so that only it knows if it refuses the command."""
        return (
            self.verb in ("resize", "set-tie auto", "set-tie true", "untie") or ("strip_prefix", True) in self.options
        )

    @property
    def command(self) -> Hint:
        """The command to copy to a shell, with OUT for the path that the user chooses."""
        # OUT beside the model if the working directory is the model: no command writes inside it.
        steps = [step for step in self.source.split("/") if step not in ("", ".")]
        if steps and steps[-1].endswith(".index.json"):
            del steps[-1]
        inside = not self.source.startswith("/") and all(step == ".." for step in steps)
        out = Hint("../" * (len(steps) + 1) + OUT) if inside else OUT
        return call(self.verb, self.source, **dict(self.options), out=out)


@record
class Remedy(Listed):
    """The next command; ``safe`` if it provably keeps the model's function. ``action`` is the command as data."""

    KEYS: ClassVar = {"action": None}

    command: str
    safe: bool
    action: Action | None = None

    @property
    def advice(self) -> str:
        """The whole command, safe to print, with `REVIEW_FIRST` if it may change the model's outputs."""
        text = shown(self.command, len(self.command))  # a shortened command would do something else
        return text if self.safe else f"{text} {REVIEW_FIRST}"


@record
class Finding(Listed):
    """One statement of a rule about an inspection. ``file`` is the file at fault, for a finding about a small file."""

    KEYS: ClassVar = {"file": None}

    rule: str
    level: Level
    message: str
    tensors: tuple[str, ...] = ()
    remedy: Remedy | None = None
    file: str = ""

    @property
    def action(self) -> Action | None:
        """The remedy as data."""
        return self.remedy.action if self.remedy else None

    @property
    def first_step(self) -> str:
        """What to do before the command, safe to print: get the file with a lost head. Else empty."""
        return f"get the file that has {shown(self.tensors[0])}" if self.rule == "TIE003" and self.tensors else ""

    @property
    def next_step(self) -> str:
        """The next step, safe to print: the remedy or an explanation. Empty for a note without a remedy."""
        if self.remedy:
            return f"{self.first_step}; if tied: {self.remedy.advice}" if self.first_step else self.remedy.advice
        return "" if self.level is Level.NOTE else f"tieconv explain {shown(self.rule)}"

    @property
    def row(self) -> tuple[str, ...]:
        """The cells of a notebook's table: level, rule, message, and the next command."""
        return str(self.level), self.rule, self.message, *filter(None, [self.next_step])


# Predict what a loader does with a model's output embedding.
class Outcome(StrEnum):
    """The state of the output embedding after loading."""

    TIED = "tied"
    UNTIED = "untied"
    RANDOM = "random"
    DISCARDED = "discarded"
    ERROR = "error"
    UNKNOWN = "unknown"


@record
class Prediction(Listed):
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
    basis: str
    cited: str
    tensors: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
