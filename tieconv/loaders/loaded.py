"""What a loader makes of a model's files: whose values each parameter gets."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from tieconv.checkpoint.value_type import record


class Absence(StrEnum):
    """What a parameter holds that gets no stored values."""

    RANDOM = "random"  # random numbers
    ZERO = "zero"  # zeros, as a head bias starts
    MEMORY = "memory"  # whatever its memory held before
    UNSET = "unset"  # nothing: it has no memory, and the loader moves no values into it


class Cause(StrEnum):
    """Why a loader makes no model of the files, or why nobody can say what it makes of them."""

    FILES = "files"  # it does not find the weights
    FLAG = "flag"  # the tie flag is not a boolean
    CONFIG = "config"
    METADATA = "metadata"  # what a weight file says of itself
    NAMES = "names"
    SHAPES = "shapes"
    UNKNOWN = "unknown"  # nothing is claimed


_OF_MODEL = (Cause.CONFIG, Cause.METADATA, Cause.NAMES, Cause.SHAPES)


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
    and the file's; ``parameters`` are these, as far as the release has them, in the order in which an answer lists
    them. Any other stored tensor is a parameter of its own, unless it is one of the ``unread``, the stored names that
    the release does not know. ``discarded`` are the stored names whose values no parameter gets. ``refusals`` say in
    the release's own order why it makes no model, or why nothing is claimed. ``in_order`` are stored tables that
    differ and of which the one that is read last stays. ``undecided`` are two stored tensors that are one parameter if
    they are equal, and that were not compared; ``alternatives`` are then the models that are possible, where that may
    not matter. ``remark`` is what else to say of the head, where it has values.
    """

    loader: str
    names: Mapping[str, str]
    parameters: Mapping[str, Parameter]
    unread: frozenset[str] = frozenset()
    discarded: tuple[str, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    in_order: tuple[str, ...] = ()
    undecided: tuple[str, str] | None = None
    alternatives: tuple[Loaded, ...] = ()
    remark: str = ""

    def refused(self, *causes: Cause) -> Refusal | None:
        """Return the first of the refusals for ``causes``; without these, for what the config and the weights hold."""
        return next((refusal for refusal in self.refusals if refusal.cause in (causes or _OF_MODEL)), None)

    def source(self, name: str) -> str | None:
        """Return the stored tensor whose values the parameter ``name`` gets; ``None`` for none."""
        parameter = self.parameters.get(name)
        return None if parameter is None else parameter.stored

    def holder(self, name: str) -> str | None:
        """Return `source`, of two equal tensors that are one parameter the one that is kept."""
        return self.source(self.parameters[name].parameter)

    def tied(self, first: str, second: str) -> bool:
        """Return whether two names are one parameter."""
        return self.parameters[first].parameter == self.parameters[second].parameter

    @property
    def unset(self) -> tuple[str, ...]:
        """The names of parameters that are left without values."""
        return tuple(name for name, parameter in self.parameters.items() if parameter.absence is Absence.UNSET)


def stopped(loader: str, refusal: Refusal) -> Loaded:
    """Return what a loader makes of files that it refuses, or of which nothing is claimed: no parameter."""
    return Loaded(loader, {}, {}, refusals=(refusal,))


def unknown(sentence: str) -> Refusal:
    """Return that nothing is claimed, because of ``sentence``."""
    return Refusal(Cause.UNKNOWN, sentence)
