"""List the parameters whose values change with a plan, for one release of transformers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.quantised_matrix import quantised_twin
from tieconv.checkpoint.value_type import record
from tieconv.loaders.loaded import Absence, Loaded, Parameter
from tieconv.plans.meaning.parameter_values import ZEROS, KnownValues


@record
class Change:
    """A parameter whose values change with the plan. ``name`` is its name in the file before the plan.

    ``origin`` is the tensor that stored the new values before, ``None`` if the plan makes the values.
    """

    name: str
    before: Parameter
    after: Parameter
    origin: str | None = None

    @property
    def loses(self) -> bool:
        """Whether the parameter no longer gets stored values. If false, it had none before."""
        return self.before.stored is not None


def changes(
    model: Inspection, result: Inspection, before: Loaded, after: Loaded, values: KnownValues
) -> Iterator[Change]:
    """Yield the parameters whose values change between a model and the ``result`` of the plan."""
    for name, old in before.names.items():
        if name in model.family.output_biases[:-1]:  # the logits use only the last name of a bias
            continue
        if quantised_twin(old, values.tensors) is None:
            yield from _change(old, before.parameters[old], after.parameters[after.names[name]], values)
    yield from _beyond_the_table(result, before, after, values)


def _change(name: str, was: Parameter, comes: Parameter, values: KnownValues) -> Iterator[Change]:
    if values.before(was) == values.after(comes) or values.is_empty(was):
        return
    if was.absence in (Absence.RANDOM, Absence.UNSET) and comes.stored is None:
        return  # it has no stored values before or after
    yield Change(name, was, comes, values.origin(comes))


def _beyond_the_table(result: Inspection, before: Loaded, after: Loaded, values: KnownValues) -> Iterator[Change]:
    """Yield the changes of tensors that are not in the class table. Each is a separate parameter.

    Its values must stay stored, under any name.
    """
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
