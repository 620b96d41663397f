"""A model as one loader sees it: each parameter, and the stored tensor that it takes its values from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tieconv.checkpoint.family import Family, FlagMeaning, Role, Tying
from tieconv.checkpoint.inspection import BiasState, Inspection, Member, State, Tie
from tieconv.checkpoint.records import TensorRecord
from tieconv.families import locate
from tieconv.families.reading import FLAG, levels, reading_v4
from tieconv.families.unset import bias_unset

HEAD_BIAS = "head bias"
"""The name under which every head bias is compared, whatever it is called."""

DERIVED_KEY = "scale_decoder_outputs"


@dataclass(frozen=True, slots=True)
class Source:
    """Where a parameter's values come from; ``scale`` is what the forward pass multiplies them by."""

    record: TensorRecord
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class View:
    """A model in one loader. A parameter that the loader leaves random or has no values for is absent.

    ``bias_unset``: a head bias that is absent does not start at zero.
    """

    loader: str
    sources: dict[str, Source]
    bias_unset: bool


def views(inspection: Inspection) -> tuple[View, ...]:
    """The model in transformers 5, and in 4 where that has its class."""
    unset = bias_unset(inspection.family)
    found = [View("transformers 5", _sources(inspection, 5), unset)]
    if inspection.family.default_v4 is not None or not inspection.family.architecture:
        found.append(View("transformers 4", _sources(inspection, 4), unset))
    return tuple(found)


def _sources(inspection: Inspection, version: int) -> dict[str, Source]:
    tensors, key = inspection.checkpoint.tensors, _Keys(inspection)
    unseen = _unindexed(inspection) if version == 4 else frozenset()
    found = {key.of(name): Source(record) for name, record in tensors.items() if name not in unseen}
    for tie in inspection.ties:
        if tie.role is not Role.OUTPUT_BIAS:
            _tie(found, key, inspection, tie, version)
    _join_biases(found, key, inspection, version)
    head = inspection.head.output_head
    factor = _scale(inspection, version)
    if head is not None and factor != 1.0 and key.of(head.name) in found:
        found[key.of(head.name)] = Source(found[key.of(head.name)].record, factor)
    return found


def _unindexed(inspection: Inspection) -> frozenset[str]:
    """Tensors that a shard holds and the index does not name, which transformers 4 does not read."""
    cautions = (caution for caution in inspection.checkpoint.cautions if caution.code == "index.extra-tensor")
    return frozenset(name for caution in cautions for name in caution.tensors)


class _Keys:
    """File names as names that both models share: without the base model's prefix, a rename undone."""

    def __init__(self, inspection: Inspection) -> None:
        family, names = inspection.family, inspection.checkpoint.tensors
        self.stored = {memory: stored for stored, memory in family.renames}
        self.start = f"{family.prefix}." if family.prefix else ""
        short = [self._short(name) for name in names]
        self.unique = len(set(short)) == len(short)

    def of(self, name: str) -> str:
        return self._short(name) if self.unique else name

    def _short(self, name: str) -> str:
        return self.stored.get(name, name).removeprefix(self.start)


def _tie(found: dict[str, Source], key: _Keys, inspection: Inspection, tie: Tie, version: int) -> None:
    """Give the names of a group that are tied the values that the loader gives them."""
    canonical = next((member for member in tie.members if member.state is State.CANONICAL), None)
    tensors = inspection.checkpoint.tensors
    unseen = canonical is not None and version == 4 and canonical.name in _unindexed(inspection)
    if canonical is None or unseen or (version == 4 and not tie.canonical_stored):
        return  # transformers 4 leaves a group whose canonical name is absent without values
    source = Source(tensors[canonical.name])
    for member in tie.members:
        if (not member.stored or version == 4) and _ties(inspection, tie, member, version):
            found[key.of(member.name)] = source


def _ties(inspection: Inspection, tie: Tie, member: Member, version: int) -> bool:
    """Whether the loader ties one name. In version 4 the flag decides over the head of every class."""
    head = inspection.head.output_head
    always = not tie.gated and not (head is not None and member.name == head.name)
    if version == 5 or always or inspection.family.tying is Tying.NEVER:
        return tie.declared
    older = reading_v4(inspection)
    return tie.declared if older is None else older


def _join_biases(found: dict[str, Source], key: _Keys, inspection: Inspection, version: int) -> None:
    """The head bias under one name: of a pair, the one that the loader computes with. An all-zero one is none,
    where the class starts it at zero.
    """
    family, tensors = inspection.family, inspection.checkpoint.tensors
    bias = inspection.head.output_bias
    if bias is None:
        return
    names = [locate(family, name, tensors) for name in family.output_biases] or [bias.name]
    for name in names:
        found.pop(key.of(name), None) if name else None
    read = _read_bias(family, [name if name in tensors else None for name in names], inspection, version)
    if version == 4 and read in _unindexed(inspection):
        return
    if read is None or (read == bias.name and bias.state is BiasState.ZERO and not bias_unset(family)):
        return
    found[HEAD_BIAS] = Source(tensors[read])


def _read_bias(family: Family, names: list[str | None], inspection: Inspection, version: int) -> str | None:
    if len(names) < 2:
        return names[0]
    outer, inner = names[0], names[-1]
    if version == 4:
        return outer
    tie = next((tie for tie in inspection.ties if tie.role is Role.OUTPUT_BIAS), None)
    return inner or (outer if tie is not None and tie.declared else None)


def _scale(inspection: Inspection, version: int) -> float:
    """What the forward pass multiplies the head by; 1 where the flag is about storage alone."""
    family, config = inspection.family, inspection.checkpoint.config_values
    meaning = family.meaning_v5 if version == 5 else family.meaning_v4
    if meaning is FlagMeaning.STORAGE:
        return 1.0
    declared = levels(inspection).get("", config.get(FLAG))
    default = family.default_v5 if version == 5 else bool(family.default_v4)
    on = default if declared is None else bool(declared)
    if meaning is FlagMeaning.DERIVES and DERIVED_KEY in config:
        on = bool(config[DERIVED_KEY])
    width = config.get("d_model")
    return float(width) ** -0.5 if on and isinstance(width, int) and width > 0 else 1.0


def untold(inspection: Inspection) -> Iterator[str]:
    """Why what ties in this model may be more than is seen through."""
    if not inspection.family.trusted:
        label = inspection.family.architecture or "its architecture"
        yield (
            f"{inspection.checkpoint.source}: the table does not know {label}, so tied names are guessed: "
            "--embed and --head name them"
        )
