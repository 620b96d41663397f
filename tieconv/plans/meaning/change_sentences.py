"""Write the sentences about values that transformers loads differently after a plan."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import assert_never

from tieconv.loaders.loaded import Absence, Parameter
from tieconv.plans.meaning.changes import Change
from tieconv.text import shown

_LISTED = 6
OWN = "with its own values"


def changed(releases: Sequence[str], names: Sequence[str], had: str, gets: str) -> str:
    """Return the sentence about tensors whose values change."""
    loaders = f"transformers {' and '.join(map(_major, releases))} {'load' if len(releases) > 1 else 'loads'}"
    return f"{loaders} {_listed(names)} {had} now and {_of(gets, names)} afterwards"


def lost(release: str, name: str, had: str, gets: str) -> str:
    """Return the refusal of a plan that loses the values of a tensor."""
    return f"transformers {_major(release)} loads {shown(name)} {had} now and would load it {gets} afterwards"


def refused(release: str, sentence: str) -> str:
    """Return the sentence about a result that a release refuses."""
    return f"transformers {_major(release)} refuses the result: {sentence}"


def unset(release: str, source: str) -> str:
    """Return the sentence about tied parameters whose only source is dropped."""
    loader = f"transformers {_major(release)}"
    return f"{loader} reads the tied values only from {shown(source)}, which the plan leaves out"


def swapped(release: str, names: Sequence[str]) -> str:
    """Return the sentence about embeddings that may be read in another order."""
    listed = ", ".join(map(shown, names))
    return (
        f"{listed} differ, and transformers {_major(release)} keeps only the one that it reads last. "
        "The plan changes their order"
    )


def first_type(dtypes: Collection[str]) -> str:
    """Return the sentence about the type in which transformers 5 loads a model."""
    return (
        f"the config has no dtype, and the tensors have the dtypes {', '.join(sorted(dtypes))}. transformers 5 loads "
        "all tensors in the dtype of the first one that it reads. The plan may change the first one: "
        "write dtype into config.json"
    )


def ends(change: Change) -> tuple[str, str]:
    """Return the phrases for the values of a parameter before and after the plan."""
    return _values(change.name, change.before, change.before.stored), _values(change.name, change.after, change.origin)


def _values(name: str, parameter: Parameter, source: str | None) -> str:
    """Return the phrase for a parameter's values. ``source`` is the tensor that held them before the plan."""
    match parameter.absence:
        case None:
            return _stored(name, source) + _times(parameter.factor)
        case Absence.RANDOM:
            return "with random numbers"
        case Absence.ZERO:
            return "with zeros"
        case Absence.MEMORY:
            return "with whatever the memory held"
        case Absence.UNSET:
            return "without values"
        case _:
            assert_never(parameter.absence)


def _stored(name: str, source: str | None) -> str:
    if source is None:
        return "with other values"
    return OWN if source == name else values_of(source)


def _times(factor: float) -> str:
    return "" if factor == 1.0 else f" times {factor:.6g}"


def values_of(source: str) -> str:
    """Return the phrase for the values of a stored tensor."""
    return f"with the values of {shown(source)}"


def _of(values: str, names: Sequence[str]) -> str:
    return "with their own values" if values == OWN and len(names) > 1 else values


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(shown(name) for name in names[:_LISTED]) + more


def _major(release: str) -> str:
    return release.partition(".")[0]
