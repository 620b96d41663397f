"""A model as one loader sees it: each parameter, and the stored tensor that it takes its values from."""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.inspection import BiasState, Inspection
from tieconv.checkpoint.value_type import record
from tieconv.comparison.parameters import ParameterNames, Source, Sources
from tieconv.loaders.evidence.head_pair import in_file
from tieconv.loaders.load import bias_unset, load, releases
from tieconv.loaders.loaded import Cause, Loaded
from tieconv.text import shown

HEAD_BIAS = "head bias"
"""The name under which every head bias is compared, whatever it is called."""


@record
class View:
    """A model in one loader. A parameter that the loader leaves random or has no values for is absent.

    ``bias_unset``: a head bias that is absent does not start at zero. ``trouble`` says why the parameters that the
    table tells are not the whole model; empty where they are. ``refused``: the loader makes no model of the file.
    ``in_order`` are tables that differ and of which the one that is read last stays.
    """

    loader: str
    sources: Sources
    bias_unset: bool
    trouble: str = ""
    refused: bool = False
    in_order: tuple[str, ...] = ()


def views(inspection: Inspection) -> tuple[View, ...]:
    """The model in transformers 5, and in 4 where that has its class."""
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
    """What the loader stops at, or leaves without values; names as both models of a comparison have them."""
    refused = loaded.refused(Cause.CONFIG, Cause.NAMES)
    if refused is not None:
        return refused.sentence
    empty = [shown(key.of(name)) for name in loaded.unset if name not in _biases(inspection)]
    return f"{', '.join(empty)}: left without values" if empty else ""


def _biases(inspection: Inspection) -> list[str]:
    """The names of the head bias, the one beside the head's weight last."""
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
    """The stored bias whose values reach the logits; of a class that has none, the one beside its head."""
    if inspection.family.output_biases or not biases:
        return loaded.source(biases[-1]) if biases else None
    return biases[-1] if biases[-1] in inspection.checkpoint.tensors and biases[-1] not in loaded.unread else None


def _starts_so(inspection: Inspection, loaded: Loaded, name: str) -> bool:
    """Whether a stored bias is all zero, and the class starts it at zero: it may as well be absent."""
    bias = inspection.head.output_bias
    zero = bias is not None and bias.name == name and bias.state is BiasState.ZERO
    return zero and not bias_unset(inspection.family)


def loaded(a: Inspection, b: Inspection) -> Iterator[tuple[View, View]]:
    """Both models in each loader that makes a model of one of them; two files that it refuses differ in nothing."""
    pairs = zip(views(a), views(b), strict=False)
    return ((view_a, view_b) for view_a, view_b in pairs if not (view_a.refused and view_b.refused))


def untold(inspection: Inspection) -> Iterator[str]:
    """Why what ties in this model may be more than is seen through."""
    if not inspection.family.trusted:
        label = inspection.family.architecture or "its architecture"
        yield (
            f"{inspection.checkpoint.source}: the table does not know {label}, so tied names are guessed: "
            "--embed and --head name them"
        )
