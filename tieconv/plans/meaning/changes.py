"""What a release of transformers makes of a parameter before a plan and after it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.quantised import quantised_twin
from tieconv.checkpoint.value_type import record
from tieconv.loaders.loaded import Absence, Loaded, Parameter
from tieconv.plans.meaning.parameter_values import ZEROS, KnownValues


@record
class Change:
    """A parameter whose values are others after the plan; ``name`` is the file's before.

    ``origin`` is the tensor that was stored before with the values that it gets; ``None`` where they are made.
    """

    name: str
    before: Parameter
    after: Parameter
    origin: str | None = None

    @property
    def loses(self) -> bool:
        """Whether stored values no longer reach the parameter; else it had none."""
        return self.before.stored is not None


def changes(
    model: Inspection, result: Inspection, before: Loaded, after: Loaded, values: KnownValues
) -> Iterator[Change]:
    """Yield the parameters whose values change between a model and the ``result`` of the plan."""
    for name, old in before.names.items():
        if name in model.family.output_biases[:-1]:  # no logit gets another name of a bias than the last
            continue
        if quantised_twin(old, values.tensors) is None:
            yield from _change(old, before.parameters[old], after.parameters[after.names[name]], values)
    yield from _beyond_the_table(result, before, after, values)


def _change(name: str, was: Parameter, comes: Parameter, values: KnownValues) -> Iterator[Change]:
    if values.before(was) == values.after(comes) or values.is_empty(was):
        return
    if was.absence in (Absence.RANDOM, Absence.UNSET) and comes.stored is None:
        return  # it had no values to lose, and gets none
    yield Change(name, was, comes, values.origin(comes))


def _beyond_the_table(result: Inspection, before: Loaded, after: Loaded, values: KnownValues) -> Iterator[Change]:
    """Each other stored tensor is a parameter of its own: its values stay stored, under whatever name."""
    stored, known = result.checkpoint.tensors, set(before.names.values())
    left: set[object] | None = None
    for name, tensor in values.tensors.items():
        if name in known:
            continue
        own = Parameter(name, name)
        if name in before.unread:
            if name in stored and name not in after.unread:
                yield Change(name, replace(own, stored=None, absence=Absence.RANDOM), own, name)
        elif stored.get(name) is not tensor:
            if left is None:
                left = {values.after(Parameter(each, each)) for each in stored}
            if values.before(own) not in left and values.before(own) != ZEROS:
                yield Change(name, own, own if name in stored else Parameter(None, name, Absence.RANDOM))
