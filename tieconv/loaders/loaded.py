"""The result of loading: which stored tensor each parameter gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum

from tieconv.checkpoint.value_type import record
from tieconv.text import listed


class Absence(StrEnum):
    """The contents of a parameter that gets no stored values."""

    RANDOM = "random"  # random numbers
    ZERO = "zero"  # zeros, the initial values of a bias
    MEMORY = "memory"  # uninitialised memory
    UNSET = "unset"  # no values at all


class Cause(StrEnum):
    """The kind of reason why a loader fails, or why tieconv makes no claim."""

    FILES = "files"  # the loader does not find the weights
    FLAG = "flag"  # the tie flag is not a boolean
    CLASS = "class"  # the release does not have it
    CONFIG = "config"
    METADATA = "metadata"  # of a weight file
    NAMES = "names"
    SHAPES = "shapes"
    UNKNOWN = "unknown"  # tieconv makes no claim


_OF_MODEL = (Cause.CONFIG, Cause.METADATA, Cause.NAMES, Cause.SHAPES)


@record
class Refusal:
    """The reason why a loader fails: one sentence, and the tensors that the sentence is about."""

    cause: Cause
    sentence: str
    tensors: tuple[str, ...] = ()


@record
class Parameter:
    """A parameter of the class after loading.

    ``stored`` is the tensor whose values it gets. Without one, ``absence`` says what it contains. ``parameter`` is the
    name of the shared parameter if it is tied, else its own name. The forward pass multiplies it by ``factor``.
    """

    stored: str | None
    parameter: str
    absence: Absence | None = None
    factor: float = 1.0


@record
class Loaded:
    """The model in one release. Names are those in the file; an absent tensor has the name that it would have there.

    ``names`` maps each name in the architecture table to the name in the file. It covers the tied groups, the
    embedding, the head and the head biases. ``parameters`` are the same tensors, in the order of an answer. Any other
    stored tensor is a separate parameter, except for ``unread``: stored names that the release does not know.
    ``discarded`` are stored names whose values no parameter gets. ``refusals`` say why the release fails, in its order,
    or why tieconv makes no claim. ``in_order`` are different stored tables; the release keeps the last one that it
    reads. ``undecided`` are two stored tensors that were not compared: they become one parameter if they are equal.
    ``alternatives`` are then the possible models, if both give one answer. ``remark`` adds a fact about a loaded head.
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
        """Return the first refusal for ``causes``. The default causes are those of the config and the weights."""
        return next((refusal for refusal in self.refusals if refusal.cause in (causes or _OF_MODEL)), None)

    def source(self, name: str) -> str | None:
        """Return the stored tensor whose values the parameter ``name`` gets, or ``None``."""
        parameter = self.parameters.get(name)
        return None if parameter is None else parameter.stored

    def holder(self, name: str) -> str | None:
        """Return `source`; if two equal tensors become one parameter, the tensor that the loader keeps."""
        return self.source(self.parameters[name].parameter)

    def tied(self, first: str, second: str) -> bool:
        """Return whether two names are one parameter."""
        return self.parameters[first].parameter == self.parameters[second].parameter

    @property
    def unset(self) -> tuple[str, ...]:
        """The names of the parameters without values."""
        return tuple(name for name, parameter in self.parameters.items() if parameter.absence is Absence.UNSET)


def stopped(loader: str, refusal: Refusal) -> Loaded:
    """Return a result without parameters, for a loader that fails or about which tieconv makes no claim."""
    return Loaded(loader, {}, {}, refusals=(refusal,))


def unknown(sentence: str) -> Refusal:
    """Return the refusal of any claim, with ``sentence`` as the reason."""
    return Refusal(Cause.UNKNOWN, sentence)


def missing(names: Sequence[str]) -> Refusal:
    """Return the refusal of a file that lacks the tensors ``names``."""
    return Refusal(Cause.NAMES, f"the file does not contain {listed(names)}", tuple(names))
