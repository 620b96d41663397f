"""What a loader makes of a model's files: whose values each parameter gets."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from tieconv.checkpoint.value_type import record


class Absence(StrEnum):
    """What a parameter holds that gets no stored values."""

    RANDOM = "random"  # random numbers
    ZERO = "zero"  # zeros, as a head bias starts
    UNSET = "unset"  # nothing: the loader moves no values into its memory


class Cause(StrEnum):
    """What a loader refuses a model for."""

    CONFIG = "config"
    METADATA = "metadata"  # what a weight file says of itself
    NAMES = "names"
    SHAPES = "shapes"


@record
class Refusal:
    """Why a loader makes no model of the files: one sentence, and the tensors that it is about."""

    cause: Cause
    sentence: str
    tensors: tuple[str, ...] = ()


@record
class Parameter:
    """A parameter of the class after loading.

    ``stored`` is the tensor whose values it gets, else ``absence`` says what it holds. ``parameter`` is the name of the
    parameter that it is one with: its own, unless it is tied. The forward pass multiplies it by ``factor``.
    """

    stored: str | None
    parameter: str
    absence: Absence | None = None
    factor: float = 1.0


@record
class Loaded:
    """One release's model. Names are those of the file, or those under which it would hold an absent tensor.

    ``names`` are the names of the architecture's groups, embedding, head and head biases, as the table spells them,
    and the file's; ``parameters`` are these. Any other stored tensor is a parameter of its own, unless it is one of the
    ``unread``, the stored names that the release does not know. ``discarded`` are the stored names whose values no
    parameter gets, ``refusals`` why the release makes no model. ``in_order`` are stored tables that differ and of which
    the one that is read last stays. ``undecided`` are two stored tensors that are one parameter if they are equal, and
    that were not compared.
    """

    loader: str
    names: Mapping[str, str]
    parameters: Mapping[str, Parameter]
    unread: frozenset[str] = frozenset()
    discarded: tuple[str, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    in_order: tuple[str, ...] = ()
    undecided: tuple[str, str] | None = None

    def refused(self, *causes: Cause) -> Refusal | None:
        """Return why the release makes no model of the files, of ``causes`` the first; ``None`` where it makes one."""
        return next((refusal for refusal in self.refusals if refusal.cause in causes or not causes), None)

    def source(self, name: str) -> str | None:
        """Return the stored tensor whose values the parameter ``name`` gets; ``None`` for none."""
        found = self.parameters.get(name)
        return None if found is None else found.stored

    def holder(self, name: str) -> str | None:
        """Return `source`, of two equal tensors that are one parameter the one that is kept."""
        return self.source(self.parameters[name].parameter)

    def one(self, name: str, other: str) -> bool:
        """Return whether two names are one parameter."""
        return self.parameters[name].parameter == self.parameters[other].parameter

    @property
    def unset(self) -> tuple[str, ...]:
        """The names of parameters that are left without values."""
        return tuple(name for name, found in self.parameters.items() if found.absence is Absence.UNSET)
