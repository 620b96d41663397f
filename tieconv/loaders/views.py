"""A model as one loader sees it: each parameter, and the stored tensor that it takes its values from."""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.architectures import locate
from tieconv.architectures.flag_levels import FLAG, cannot_build, levels, reading_v4, text_config
from tieconv.checkpoint.family import Family, FlagMeaning, Role, TieGroup, Tying
from tieconv.checkpoint.inspection import BiasState, Inspection, Tie
from tieconv.checkpoint.value_type import record
from tieconv.loaders.parameters import ParameterNames, Source, Sources
from tieconv.loaders.transformers import names5 as newer
from tieconv.loaders.transformers.names4 import corrupt, unread
from tieconv.loaders.transformers.shared_tables import last_read
from tieconv.loaders.transformers.ties4 import NO_VALUES, TIES_V4, sources
from tieconv.loaders.transformers.uninitialised_bias import bias_unset
from tieconv.text import shown

HEAD_BIAS = "head bias"
"""The name under which every head bias is compared, whatever it is called."""

DERIVED_KEY = "scale_decoder_outputs"

_OLDER = "4.57"
"""The release of transformers 4 that counts."""


@record
class View:
    """A model in one loader. A parameter that the loader leaves random or has no values for is absent.

    ``bias_unset``: a head bias that is absent does not start at zero. ``trouble`` says why the parameters that the
    table tells are not the whole model; empty where they are. ``refused``: the loader makes no model of the file.
    """

    loader: str
    sources: Sources
    bias_unset: bool
    trouble: str = ""
    refused: bool = False


def views(inspection: Inspection) -> tuple[View, ...]:
    """The model in transformers 5, and in 4 where that has its class."""
    unset, names = bias_unset(inspection.family), ParameterNames(inspection)
    found = [View("transformers 5", _sources(inspection, names, 5), unset, _refused(inspection))]
    if inspection.family.default_v4 is not None or not inspection.family.architecture:
        odd = corrupt(inspection.family, inspection.checkpoint.tensors, _OLDER)
        trouble = _trouble(inspection, names, odd)
        found.append(View("transformers 4", _sources(inspection, names, 4), unset, trouble, refused=odd is not None))
    return tuple(found)


def _refused(inspection: Inspection) -> str:
    """What transformers 5 stops at."""
    flags = (entry.value for entry in inspection.config.declared)
    if inspection.family.model_type in newer.REFUSES_TIED and True in flags:
        return f"it refuses {FLAG} true"
    if cannot_build(inspection):
        return f"it cannot build the class with {FLAG} true"
    return ""


def _trouble(inspection: Inspection, key: ParameterNames, odd: str | None) -> str:
    """What transformers 4 stops at (``odd``), or leaves without values; names as both models of a comparison have
    them.
    """
    if odd is not None:
        return f"it refuses the file, where {shown(key.of(odd))} stands beside names without the prefix"
    if inspection.family.text_class in TIES_V4 and reading_v4(inspection):
        return "it ties the head, as transformers 5 does not"
    unseen = _unseen(inspection)
    empty = [
        key.of(member.name)
        for group, tie in _grouped(inspection)
        for member, place in zip(tie.members, _places(inspection, group, tie, 4, unseen), strict=True)
        if place == NO_VALUES
    ]
    return f"{', '.join(map(shown, empty))}: left without values" if empty else ""


def _sources(inspection: Inspection, key: ParameterNames, version: int) -> Sources:
    tensors = inspection.checkpoint.tensors
    unseen = _unseen(inspection) if version == 4 else newer.unread(inspection.family, tensors)
    found = Sources(key, unseen)
    for group, tie in _grouped(inspection):
        for member, place in zip(tie.members, _places(inspection, group, tie, version, unseen), strict=True):
            if place is not None and place != NO_VALUES:
                found[key.of(member.name)] = Source(tensors[tie.members[place].name])
            elif version == 4:  # which drops what is stored under tied names
                found.drop(key.of(member.name))
    _join_biases(found, key, inspection, version)
    head = inspection.head.output_head
    factor = _scale(inspection, version)
    stored = found.get(key.of(head.name)) if head is not None and factor != 1.0 else None
    if head is not None and stored is not None:
        found[key.of(head.name)] = Source(stored.record, factor)
    return found


def _unseen(inspection: Inspection) -> frozenset[str]:
    """Stored names that transformers 4 does not read: it does not know them, or no index names them."""
    return _unindexed(inspection) | unread(inspection.family, inspection.checkpoint.tensors, _OLDER)


def _unindexed(inspection: Inspection) -> frozenset[str]:
    """Tensors that a shard holds and the index does not name, which transformers 4 does not read."""
    cautions = (caution for caution in inspection.checkpoint.cautions if caution.code == "index.extra-tensor")
    return frozenset(name for caution in cautions for name in caution.tensors)


def _grouped(inspection: Inspection) -> Iterator[tuple[TieGroup, Tie]]:
    """The groups of the table of which a name is stored, but for the biases', and what the file holds of each."""
    family, tensors, ties = inspection.family, inspection.checkpoint.tensors, iter(inspection.ties)
    for group in family.groups:
        if any(locate(family, name, tensors) is not None for name in (group.canonical, *group.members)):
            tie = next(ties)
            if group.role is not Role.OUTPUT_BIAS:
                yield group, tie


def _places(
    inspection: Inspection, group: TieGroup, tie: Tie, version: int, unseen: frozenset[str]
) -> tuple[int | None, ...]:
    """For each name of a group the place of the name whose values it has; ``None`` where it keeps or lacks its own."""
    names = (group.canonical, *group.members)
    stored = [member.stored and member.name not in unseen for member in tie.members]
    if version == 5:
        return newer.sources(inspection.family, names, stored) if tie.declared else (None,) * len(names)
    last = last_read(inspection, names, [member.name for member in tie.members])
    tied = _tied_v4(inspection, names, tie)
    return sources(inspection.family, names, stored, _OLDER, tied=tied, last=last)


def _tied_v4(inspection: Inspection, names: tuple[str, ...], tie: Tie) -> bool:
    """Whether transformers 4 ties a group. The flag decides over the head of every class."""
    family, older = inspection.family, reading_v4(inspection)
    if older is None or family.tying is Tying.NEVER:
        return tie.declared
    return older if family.output_head in names else older or not tie.gated


def _join_biases(found: Sources, key: ParameterNames, inspection: Inspection, version: int) -> None:
    """The head bias under one name: of a pair, the one that the loader computes with. An all-zero one is none,
    where the class starts it at zero.
    """
    family, tensors = inspection.family, inspection.checkpoint.tensors
    bias = inspection.head.output_bias
    if bias is None:
        return
    names = [locate(family, name, tensors) for name in family.output_biases] or [bias.name]
    for name in filter(None, names):
        found.drop(key.of(name))
    read = _read_bias(family, [name if name in tensors else None for name in names], inspection, version)
    if version == 4 and read in _unseen(inspection):
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
    family, config = inspection.family, text_config(inspection)
    meaning = family.meaning_v5 if version == 5 else family.meaning_v4
    if meaning is FlagMeaning.STORAGE:
        return 1.0
    declared = levels(inspection).get(family.text_level, config.get(FLAG))
    default = family.default_v5 if version == 5 else bool(family.default_v4)
    on = default if declared is None else bool(declared)
    if meaning is FlagMeaning.DERIVES and DERIVED_KEY in config:
        on = bool(config[DERIVED_KEY])
    width = config.get("d_model")
    return float(width) ** -0.5 if on and isinstance(width, int) and width > 0 else 1.0


def loaded(a: Inspection, b: Inspection) -> Iterator[tuple[View, View]]:
    """Both models in each loader that makes a model of one of them; two files that it refuses differ in nothing."""
    pairs = zip(views(a), views(b), strict=False)
    return ((one, two) for one, two in pairs if not (one.refused and two.refused))


def untold(inspection: Inspection) -> Iterator[str]:
    """Why what ties in this model may be more than is seen through."""
    if not inspection.family.trusted:
        label = inspection.family.architecture or "its architecture"
        yield (
            f"{inspection.checkpoint.source}: the table does not know {label}, so tied names are guessed: "
            "--embed and --head name them"
        )
