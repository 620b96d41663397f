"""Describe a model in one loader: each parameter, and the stored tensor with its values."""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.head import BiasState
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.value_type import record
from tieconv.comparison.parameters import ParameterNames, Source, Sources
from tieconv.loaders.evidence.head_pair import in_file
from tieconv.loaders.load import bias_unset, load, releases
from tieconv.loaders.loaded import Cause, Loaded
from tieconv.text import shown

HEAD_BIAS = "head bias"
"""The name under which every head bias is compared."""


@record
class View:
    """A model in one loader. A parameter that the loader leaves random or has no values for is absent.

    ``bias_unset``: an absent head bias does not start at zero. ``trouble`` says why the parameters in the table are not
    the whole model, else it is empty. ``refused``: the loader fails. ``in_order`` are different tables; the loader
    keeps the last one that it reads.
    """

    loader: str
    sources: Sources
    bias_unset: bool
    trouble: str = ""
    refused: bool = False
    in_order: tuple[str, ...] = ()


def views(inspection: Inspection) -> tuple[View, ...]:
    """Return the model in transformers 5, and in transformers 4 if that has its class."""
    key = ParameterNames(inspection)
    return tuple(_view(inspection, key, release) for release in releases(inspection))


def _view(inspection: Inspection, key: ParameterNames, release: str) -> View:
    loaded = load(inspection, release)
    return View(
        loaded.loader.partition(".")[0],
        _sources(inspection, loaded, key),
        bias_unset(inspection.family, release),
        _trouble(inspection, loaded, key),
        loaded.refused(Cause.NAMES) is not None,
        loaded.in_order,
    )


def _trouble(inspection: Inspection, loaded: Loaded, key: ParameterNames) -> str:
    """Return why the loader fails, or what it leaves without values, with the names of the comparison."""
    refused = loaded.refused(Cause.CONFIG, Cause.NAMES)
    if refused is not None:
        return refused.sentence
    empty = [shown(key.of(name)) for name in loaded.unset if name not in _biases(inspection)]
    return f"{', '.join(empty)}: left without values" if empty else ""


def _biases(inspection: Inspection) -> list[str]:
    """Return the names of the head bias; the one next to the head's weight is last."""
    bias = inspection.head.output_bias
    names = [in_file(inspection, name) for name in inspection.family.output_biases]
    return names or ([bias.name] if bias is not None else [])


def _sources(inspection: Inspection, loaded: Loaded, key: ParameterNames) -> Sources:
    tensors, biases = inspection.checkpoint.tensors, _biases(inspection)
    sources = Sources(key, loaded.unread)
    for name, parameter in loaded.parameters.items():
        if parameter.stored is None or name in biases:
            sources.drop(key.of(name))
        elif parameter.stored != name or parameter.factor != 1.0:
            sources[key.of(name)] = Source(tensors[parameter.stored], parameter.factor)
    for name in biases:
        sources.drop(key.of(name))
    read = _bias(inspection, loaded, biases)
    if read is not None and not _starts_so(inspection, loaded, read):
        sources[HEAD_BIAS] = Source(tensors[read])
    return sources


def _bias(inspection: Inspection, loaded: Loaded, biases: list[str]) -> str | None:
    """Return the stored bias that reaches the logits, else the one next to the head."""
    if inspection.family.output_biases or not biases:
        return loaded.source(biases[-1]) if biases else None
    return biases[-1] if biases[-1] in inspection.checkpoint.tensors and biases[-1] not in loaded.unread else None


def _starts_so(inspection: Inspection, loaded: Loaded, name: str) -> bool:
    """Return whether a stored bias is all zero, and the class starts an absent one at zero."""
    bias = inspection.head.output_bias
    zero = bias is not None and bias.name == name and bias.state is BiasState.ZERO
    return zero and not bias_unset(inspection.family)


def loaded(a: Inspection, b: Inspection) -> Iterator[tuple[View, View]]:
    """Yield both models in each loader that loads at least one of them."""
    pairs = zip(views(a), views(b), strict=False)
    return ((view_a, view_b) for view_a, view_b in pairs if not (view_a.refused and view_b.refused))


def untold(inspection: Inspection) -> Iterator[str]:
    """Yield why this model may have ties that the comparison does not know."""
    if not inspection.family.trusted:
        label = inspection.family.architecture or "its architecture"
        yield (
            f"{inspection.checkpoint.source}: tieconv does not know {label} and guesses the tied names; "
            "give them with --embed and --head"
        )
