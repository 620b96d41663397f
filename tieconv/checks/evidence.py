"""Questions that several rules ask of an inspection, and the phrases in which they answer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tieconv.architectures.flag_levels import FLAG, levels, reading_v4
from tieconv.checkpoint import phrases
from tieconv.checkpoint.family import Knowledge, Tying
from tieconv.checkpoint.files.cautions import Caution
from tieconv.checkpoint.finding import Level
from tieconv.checkpoint.inspection import Inspection, State
from tieconv.checkpoint.quantised import quantised_twin
from tieconv.checkpoint.shape_fit import fits
from tieconv.checkpoint.tie_group import Member, Tie
from tieconv.text import shown

__all__ = ["FLAG", "levels", "reading_v4"]

EQUAL = frozenset({State.CANONICAL, State.ABSENT, State.IDENTICAL, State.ALIASED})
"""States that a tied group may hold."""

UNEQUAL = frozenset({State.TRANSPOSED, State.CAST, State.SCALED, State.NEAR, State.DISTINCT})
"""States in which two tensors are proved to be different."""

LISTED = 4
"""Names that a sentence lists before it says how many more there are."""


# --- the config ------------------------------------------------------------------------------------------


def levels_disagree(inspection: Inspection) -> bool:
    """Whether two levels of the config declare different values."""
    return _flag_decides(inspection) and len(set(levels(inspection).values())) > 1


def versions_differ(inspection: Inspection) -> bool:
    """Whether transformers 4 and 5 tie differently because a level that one of them reads has no flag."""
    tied_in_v4 = reading_v4(inspection)
    if levels_disagree(inspection) or not _flag_decides(inspection) or tied_in_v4 is None:
        return False
    return tied_in_v4 is not inspection.config.effective


def disputed(inspection: Inspection) -> bool:
    """Whether the config leaves it to the reader if the model is tied: two values, or none at all."""
    undeclared = not levels(inspection) and versions_differ(inspection)
    return undeclared or levels_disagree(inspection)


def fits_reader(inspection: Inspection, head: Member, tied: bool) -> bool:
    """Whether the stored head is right for a reader that takes the model as ``tied``."""
    if is_missing(inspection, head):
        return tied
    return not tied or head.state not in UNEQUAL


def unheeded_false(inspection: Inspection) -> bool:
    """Whether the class ties whatever the config says, and transformers 4 reads the config as untied."""
    return inspection.family.tying is Tying.ALWAYS and reading_v4(inspection) is False


def _flag_decides(inspection: Inspection) -> bool:
    family = inspection.family
    return family.knowledge is Knowledge.TABLE and family.tying is Tying.CAN


# --- the tie groups --------------------------------------------------------------------------------------


def head_member(inspection: Inspection, tie: Tie) -> Member | None:
    """The output embedding's entry in a group."""
    head = inspection.head.output_head
    return next((member for member in tie.members if head and member.name == head.name), None)


def head_tie(inspection: Inspection) -> tuple[Tie, Member] | None:
    """The group of the output embedding, and its entry there."""
    head_members = ((tie, head_member(inspection, tie)) for tie in inspection.ties)
    return next(((tie, member) for tie, member in head_members if member is not None), None)


def reference(tie: Tie) -> str:
    """The stored name that the others of the group are compared with."""
    return next((member.name for member in tie.members if member.state is State.CANONICAL), tie.canonical)


def declared_tied(inspection: Inspection) -> Iterator[Tie]:
    """The groups that every reader takes for tied."""
    for tie in inspection.ties:
        if tie.declared and not unheeded_false(inspection):
            yield tie


def declared_untied(inspection: Inspection) -> Iterator[Tie]:
    """The groups that every reader takes for separate, in classes that can have them tied."""
    if inspection.family.tying is Tying.CAN and inspection.config.known:
        yield from (tie for tie in inspection.ties if not tie.declared)


def is_empty(inspection: Inspection, name: str) -> bool:
    """Whether a tensor is stored and holds no element."""
    record = inspection.checkpoint.tensors.get(name)
    return record is not None and record.elements == 0


def shapes_differ(inspection: Inspection, tie: Tie, member: Member) -> bool:
    """Whether a stored member does not fit the group's reference; STO002 reports those without elements."""
    tensors = inspection.checkpoint.tensors
    record, canonical_record = tensors.get(member.name), tensors.get(reference(tie))
    if record is None or canonical_record is None or not record.elements or not canonical_record.elements:
        return False
    return not fits(record, canonical_record)


def is_quantised(inspection: Inspection, name: str) -> bool:
    """Whether a weight is stored as codes, under names beside its own."""
    return quantised_twin(name, inspection.checkpoint.tensors) is not None


def is_missing(inspection: Inspection, member: Member) -> bool:
    """Whether nothing is stored for a name, neither a tensor nor quantised codes."""
    return not member.stored and not is_quantised(inspection, member.name)


def certain(inspection: Inspection, level: Level) -> Level:
    """``level``, lowered from error to warning where the architecture was guessed from names."""
    return Level.WARNING if not inspection.family.trusted and level is Level.ERROR else level


def cautions(inspection: Inspection, code: str) -> Iterator[Caution]:
    """What reading the files already found out of place."""
    return (caution for caution in inspection.checkpoint.cautions if caution.code == code)


def refused_formats(inspection: Inspection) -> dict[str, list[str]]:
    """The safetensors files whose metadata transformers 4 refuses, by the format that it names; empty for none."""
    files_by_format: dict[str, list[str]] = {}
    for file in inspection.checkpoint.files if inspection.checkpoint.format == "safetensors" else ():
        if file.refused_format is not None:
            files_by_format.setdefault(file.refused_format, []).append(file.name)
    return files_by_format


# --- phrases ---------------------------------------------------------------------------------------------


def label(inspection: Inspection) -> str:
    """The class as the subject of a sentence."""
    return shown(inspection.family.architecture) if inspection.family.architecture else "the architecture"


def listed(names: Iterable[str]) -> str:
    """``a``, ``a and b``, ``a, b, c, d and 3 more``."""
    every = [shown(name) for name in names]
    head, rest = every[:LISTED], len(every) - LISTED
    if rest > 0:
        return f"{', '.join(head)} and {rest:,} more"
    return " and ".join(filter(None, (", ".join(head[:-1]), *head[-1:])))


def verb(names: Sequence[str], singular: str, plural: str) -> str:
    """``singular`` for a single name, else ``plural``."""
    return singular if len(names) == 1 else plural


def clause(names: Sequence[str], singular: str, plural: str) -> str:
    """The names as a subject with its verb: ``a is``, ``a and b are``."""
    return f"{listed(names)} {verb(names, singular, plural)}"


def says(inspection: Inspection, tied: bool) -> str:
    """Who decides that the model is tied, or untied."""
    word = "tied" if tied else "untied"
    if levels(inspection) or any(entry.value is not None for entry in inspection.config.declared):
        return f"the config declares the model {word}"
    if inspection.checkpoint.config is None:
        return f"without a config the model counts as {word}"
    return f"the config leaves the flag out and {label(inspection)} is {word} by default"


def difference(member: Member, canonical: str, noun: str = "rows") -> str:
    """``a differs from b (…)`` with the figures of the difference."""
    return f"{listed([member.name])} differs from {listed([canonical])} ({phrases.difference(member, noun)})"
