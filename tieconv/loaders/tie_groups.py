"""The tie groups of an architecture as a loader meets them, the ones without a stored name included."""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.architectures.flag_levels import text_config
from tieconv.checkpoint.family import Role
from tieconv.checkpoint.inspection import BiasState, Inspection, Member
from tieconv.checkpoint.relation.interface import Absent
from tieconv.checkpoint.value_type import record
from tieconv.loaders import questions as facts


@record
class Group:
    """Names that the class can make one parameter: those of the table, and what the file holds for each."""

    role: Role
    names: tuple[str, ...]
    members: tuple[Member, ...]
    gated: bool
    declared: bool


@record
class Loaded:
    """Parameters after loading: ``owner`` gives each name of the table its parameter, ``content`` what that holds.

    ``content`` is the stored name whose values it took, ``None`` where it keeps those of its initialisation.
    """

    owner: dict[str, int]
    content: dict[int, str | None]

    def value(self, name: str) -> str | None:
        """The stored name whose values the parameter ``name`` holds."""
        return self.content[self.owner[name]]


def groups(inspection: Inspection) -> Iterator[Group]:
    """Every group of the architecture, in the order of the table."""
    ties = iter(inspection.ties)
    tensors = inspection.checkpoint.tensors
    gated = next((tie.declared for tie in inspection.ties if tie.gated), inspection.config.effective)
    for group in inspection.family.groups:
        names = (group.canonical, *group.members)
        if any(facts.in_file(inspection, name) in tensors for name in names):
            tie = next(ties)
            yield Group(group.role, names, tie.members, group.gated, tie.declared)
        else:
            absent = tuple(Member(facts.in_file(inspection, name), False, Absent()) for name in names)
            yield Group(group.role, names, absent, group.gated, gated if group.gated else True)


def alone(inspection: Inspection, loaded: Loaded) -> Loaded:
    """``loaded`` with the embedding and the head added, where they are in no group."""
    family, tensors = inspection.family, inspection.checkpoint.tensors
    for name in (family.input_embedding, family.output_head):
        if name is not None and name not in loaded.owner:
            stored = facts.in_file(inspection, name)
            loaded.owner[name] = len(loaded.content)
            loaded.content[len(loaded.content)] = stored if stored in tensors else None
    return loaded


def misshapen(inspection: Inspection, group: Group) -> str | None:
    """A stored name of another shape than the group's first one: loaders stop at it."""
    tensors, apart = inspection.checkpoint.tensors, two_vocabularies(inspection)
    stored = [member.name for member in group.members if member.stored]
    held = [name for name in stored if not (apart and "encoder" in name.split("."))]
    return next((name for name in held if tensors[name].shape != tensors[held[0]].shape), None)


def two_vocabularies(inspection: Inspection) -> bool:
    """Whether the config gives the encoder a vocabulary of its own, as FSMT's can."""
    config = text_config(inspection)
    both = (config.get("src_vocab_size"), config.get("tgt_vocab_size"))
    return inspection.family.text_type == "fsmt" and None not in both and both[0] != both[1]


def biases(inspection: Inspection) -> Group | None:
    """The pair of names of the head bias, where the class has one."""
    return next((group for group in groups(inspection) if group.role is Role.OUTPUT_BIAS), None)


def is_zero(inspection: Inspection, name: str) -> bool:
    """Whether the bias that the inspection looked at is this one, and all zero."""
    bias = inspection.head.output_bias
    return bias is not None and bias.name == name and bias.state is BiasState.ZERO
