"""List the tied groups of an architecture for a loader, also those without a stored name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from tieconv.architectures.effective_flag import DERIVED_KEY, FLAG, levels, text_config
from tieconv.checkpoint.family import FlagMeaning, Role
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.relation.interface import Absent
from tieconv.checkpoint.tie_group import BiasState, Member
from tieconv.checkpoint.value_type import record
from tieconv.checkpoint.weight_file import fits
from tieconv.loaders import release_tables
from tieconv.loaders.evidence.head_pair import in_file
from tieconv.loaders.loaded import Absence, Parameter


@record
class Group:
    """Names that the class can make one parameter: those in the table, and the member of the file for each."""

    role: Role
    names: tuple[str, ...]
    members: tuple[Member, ...]
    gated: bool
    declared: bool


def groups(inspection: Inspection) -> Iterator[Group]:
    """Yield every group of the architecture, in the order of the table."""
    checkpoint = inspection.checkpoint
    # A graph has its own ties, which may differ from those of the class.
    tensors = checkpoint.tensors if checkpoint.format != "onnx" else {}
    ties = iter(inspection.ties)
    gated = next((tie.declared for tie in inspection.ties if tie.gated), inspection.config.effective)
    for group in inspection.family.groups:
        names = (group.canonical, *group.members)
        if any(in_file(inspection, name) in tensors for name in names):
            tie = next(ties)
            yield Group(group.role, names, tie.members, group.gated, tie.declared)
        else:
            absent = tuple(Member(in_file(inspection, name), False, Absent()) for name in names)
            yield Group(group.role, names, absent, group.gated, gated if group.gated else True)


def file_names(inspection: Inspection) -> dict[str, str]:
    """Map each name of the architecture's groups, embedding, head and head biases to its name in the file."""
    family = inspection.family
    names = {
        name: member.name
        for group in groups(inspection)
        for name, member in zip(group.names, group.members, strict=True)
    }
    for name in (family.input_embedding, family.output_head, *family.output_biases):
        if name is not None and name not in names:
            names[name] = in_file(inspection, name)
    return names


def before_ties(inspection: Inspection, release: str) -> dict[str, Parameter]:
    """Return the parameters by their names in the file, before any tie."""
    family, tensors = inspection.family, inspection.checkpoint.tensors
    biases = {name for group in groups(inspection) if group.role is Role.OUTPUT_BIAS for name in group.names}
    biases.update(family.output_biases)
    unset = Absence.UNSET if family.text_class in release_tables.names(release, "unset bias") else Absence.ZERO
    return {
        stored: Parameter(stored, stored)
        if stored in tensors
        else Parameter(None, stored, unset if name in biases else Absence.RANDOM)
        for name, stored in file_names(inspection).items()
    }


def discarded(inspection: Inspection, parameters: Mapping[str, Parameter], unread: Iterable[str]) -> tuple[str, ...]:
    """Return the stored names, also the ``unread`` ones, whose values none of ``parameters`` gets."""
    used = {parameter.stored for parameter in parameters.values()}
    stored = [name for name in parameters if name in inspection.checkpoint.tensors]
    return tuple(name for name in (*stored, *sorted(unread)) if name not in used)


def head_factor(inspection: Inspection, meaning: FlagMeaning, default: bool) -> float:
    """Return the factor of the head in the forward pass; 1 if the flag decides only about storage."""
    if meaning is FlagMeaning.STORAGE:
        return 1.0
    config = text_config(inspection)
    declared = levels(inspection).get(inspection.family.text_level, config.get(FLAG))
    on = default if declared is None else bool(declared)
    if meaning is FlagMeaning.DERIVES and DERIVED_KEY in config:
        on = bool(config[DERIVED_KEY])
    width = config.get("d_model")
    return float(width) ** -0.5 if on and isinstance(width, int) and width > 0 else 1.0


def misshapen(inspection: Inspection) -> str | None:
    """Return a stored name whose shape does not fit the first one of its group. Loaders refuse such a model."""
    tensors, two_sizes = inspection.checkpoint.tensors, two_vocabularies(inspection)
    for group in groups(inspection):
        stored = [member.name for member in group.members if member.stored]
        compared = [name for name in stored if not (two_sizes and "encoder" in name.split("."))]
        misfit = next((name for name in compared if not fits(tensors[name], tensors[compared[0]])), None)
        if misfit is not None:
            return misfit
    return None


def two_vocabularies(inspection: Inspection) -> bool:
    """Return whether the config gives the encoder a separate vocabulary, as FSMT's can."""
    if inspection.family.text_type not in release_tables.names("transformers-5", "two vocabularies"):
        return False
    config = text_config(inspection)
    both = (config.get("src_vocab_size"), config.get("tgt_vocab_size"))
    return None not in both and both[0] != both[1]


def bias_group(inspection: Inspection) -> Group | None:
    """Return the group of the two names of the head bias, or ``None``."""
    return next((group for group in groups(inspection) if group.role is Role.OUTPUT_BIAS), None)


def is_zero(inspection: Inspection, name: str) -> bool:
    """Return whether ``name`` is the head bias of the inspection and is all zero."""
    bias = inspection.head.output_bias
    return bias is not None and bias.name == name and bias.state is BiasState.ZERO
