"""What rules are made of: the type of a rule, and the phrases and questions that rules share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from inspect import cleandoc

from tieconv.architectures.effective_flag import FLAG, levels, reading_v4
from tieconv.checkpoint import phrases
from tieconv.checkpoint.family import Knowledge, Tying
from tieconv.checkpoint.finding import Finding, Level, Remedy
from tieconv.checkpoint.inspection import Declared, Inspection, State
from tieconv.checkpoint.model_files import Caution, Checkpoint, outside_index
from tieconv.checkpoint.quantised_matrix import quantised_twin
from tieconv.checkpoint.tie_group import Member, Tie
from tieconv.checkpoint.value_type import record
from tieconv.checkpoint.weight_file import fits
from tieconv.text import in_words, shown


# The interface of a rule.
@record
class Rule:
    """One kind of fault that tieconv reports.

    ``documentation`` is Markdown. ``level`` is the level of most of its findings.
    """

    code: str
    name: str
    level: Level
    documentation: str
    find: Callable[[Inspection], Iterable[Finding]]

    @property
    def summary(self) -> str:
        """The fault that the rule reports, in one line."""
        return self.documentation.partition("\n")[0].rstrip(".")

    def finding(
        self, message: str, tensors: Iterable[str] = (), *, level: Level | None = None, remedy: Remedy | None = None
    ) -> Finding:
        """Return a finding of this rule, at the rule's level unless ``level`` is given."""
        return Finding(self.code, level or self.level, message, tuple(tensors), remedy)


def rule(code: str, name: str, level: Level) -> Callable[[Callable[[Inspection], Iterable[Finding]]], Rule]:
    """Return a decorator that makes a rule of a function, which yields findings; its docstring documents the rule."""

    def decorated(find: Callable[[Inspection], Iterable[Finding]]) -> Rule:
        return Rule(code, name, level, f"{cleandoc(find.__doc__ or '')}\n", find)

    return decorated


# Facts of an inspection that several rules need, and the phrases of their messages.

__all__ = ["FLAG", "levels", "reading_v4"]

EQUAL = frozenset({State.CANONICAL, State.ABSENT, State.IDENTICAL, State.ALIASED})
"""States of a tied group without a fault."""

UNEQUAL = frozenset({State.TRANSPOSED, State.CAST, State.SCALED, State.NEAR, State.DISTINCT})
"""States that prove two tensors different, except for a lossless cast."""


def is_unequal(member: Member) -> bool:
    """Return whether the values of a stored member are proved to differ from those of its group's reference."""
    return member.state in UNEQUAL and not member.relation.is_lossless_cast


LISTED = 4
"""The number of names that a sentence lists. It only counts the rest."""


def levels_disagree(inspection: Inspection) -> bool:
    """Return whether two levels of the config declare different values."""
    return _flag_decides(inspection) and len(set(levels(inspection).values())) > 1


def versions_differ(inspection: Inspection) -> bool:
    """Return whether transformers 4 and 5 tie differently because a level that one of them reads has no flag."""
    tied_in_v4 = reading_v4(inspection)
    if levels_disagree(inspection) or not _flag_decides(inspection) or tied_in_v4 is None:
        return False
    return tied_in_v4 is not inspection.config.effective


def unclear_flags(inspection: Inspection) -> list[Declared]:
    """Return the tie flags of the config that are not a boolean."""
    return [entry for entry in inspection.config.declared if entry.present and not isinstance(entry.value, bool)]


def disputed(inspection: Inspection) -> bool:
    """Return whether the loader decides if the model is tied: the config has two values, or none."""
    undeclared = not levels(inspection) and versions_differ(inspection)
    return undeclared or levels_disagree(inspection)


def fits_reader(inspection: Inspection, head: Member, tied: bool) -> bool:
    """Return whether the stored head is right for a loader that treats the model as ``tied``."""
    if is_missing(inspection, head):
        return tied
    return not tied or not is_unequal(head)


def unheeded_false(inspection: Inspection) -> bool:
    """Return whether the class ties whatever the config says, but transformers 4 reads untied from the config."""
    return inspection.family.tying is Tying.ALWAYS and reading_v4(inspection) is False


def _flag_decides(inspection: Inspection) -> bool:
    family = inspection.family
    return family.knowledge is Knowledge.TABLE and family.tying is Tying.CAN


def head_member(inspection: Inspection, tie: Tie) -> Member | None:
    """Return the member of a group that is the output head."""
    head = inspection.head.output_head
    return next((member for member in tie.members if head and member.name == head.name), None)


def head_tie(inspection: Inspection) -> tuple[Tie, Member] | None:
    """Return the group of the output head, and its member that is the head."""
    head_members = ((tie, head_member(inspection, tie)) for tie in inspection.ties)
    return next(((tie, member) for tie, member in head_members if member is not None), None)


def reference(tie: Tie) -> str:
    """Return the stored name that tieconv compares the others of the group with."""
    return next((member.name for member in tie.members if member.state is State.CANONICAL), tie.canonical)


def declared_tied(inspection: Inspection) -> Iterator[Tie]:
    """Yield the groups that every loader treats as tied."""
    for tie in inspection.ties:
        if tie.declared and not unheeded_false(inspection):
            yield tie


def lost_tensors(inspection: Inspection) -> tuple[str, ...]:
    """Return the tensors that the index lists, no shard holds (listed or not), and no tied name replaces."""
    ties = [tie for tie in declared_tied(inspection) if tie.canonical_stored]
    spare = {member.name for tie in ties for member in tie.members}
    absent = (name for caution in cautions(inspection, "index.absent-tensor") for name in caution.tensors)
    held = spare.union(inspection.checkpoint.tensors, outside_index(inspection.checkpoint))
    return tuple(name for name in absent if name not in held)


def declared_untied(inspection: Inspection) -> Iterator[Tie]:
    """Yield the groups that every loader treats as untied, in classes that can tie them."""
    if inspection.family.tying is Tying.CAN and inspection.config.known:
        yield from (tie for tie in inspection.ties if not tie.declared)


def is_empty(inspection: Inspection, name: str) -> bool:
    """Return whether a tensor is stored and has no elements."""
    record = inspection.checkpoint.tensors.get(name)
    return record is not None and record.elements == 0


def shapes_differ(inspection: Inspection, tie: Tie, member: Member) -> bool:
    """Return whether a stored member does not fit the group's reference. STO002 reports tensors without elements."""
    tensors = inspection.checkpoint.tensors
    record, canonical_record = tensors.get(member.name), tensors.get(reference(tie))
    if record is None or canonical_record is None or not record.elements or not canonical_record.elements:
        return False
    return not fits(record, canonical_record)


def is_quantised(inspection: Inspection, name: str) -> bool:
    """Return whether a weight is stored as quantised codes, under other names."""
    return quantised_twin(name, inspection.checkpoint.tensors) is not None


def in_parts(inspection: Inspection, tie: Tie, member: Member) -> bool:
    """Return whether a member or its reference is a quantised matrix. Its codes alone prove nothing."""
    if inspection.quantised is None or inspection.checkpoint.format not in ("safetensors", "torch"):
        return False
    return not {member.name, reference(tie)}.isdisjoint(matrix.name for matrix in inspection.quantised.matrices)


def is_missing(inspection: Inspection, member: Member) -> bool:
    """Return whether no file holds a tensor or quantised codes for a name."""
    return not (
        member.stored or is_quantised(inspection, member.name) or is_outside_index(inspection.checkpoint, member.name)
    )


def is_outside_index(checkpoint: Checkpoint, name: str) -> bool:
    """Return whether a shard that the index does not list holds the tensor. IDX002 reports the shard."""
    return name in outside_index(checkpoint)


def certain(inspection: Inspection, level: Level) -> Level:
    """Return ``level``, or warning instead of error if the architecture was guessed from names."""
    return Level.WARNING if not inspection.family.trusted and level is Level.ERROR else level


def cautions(inspection: Inspection, code: str) -> Iterator[Caution]:
    """Yield the cautions with this code, which the reader of the files recorded."""
    return (caution for caution in inspection.checkpoint.cautions if caution.code == code)


def refused_formats(inspection: Inspection) -> dict[str, list[str]]:
    """Return the safetensors files that transformers 4 refuses, by the format in their metadata; ``""`` for none."""
    files_by_format: dict[str, list[str]] = {}
    for file in inspection.checkpoint.files if inspection.checkpoint.format == "safetensors" else ():
        if file.refused_format is not None:
            files_by_format.setdefault(file.refused_format, []).append(file.name)
    return files_by_format


def label(inspection: Inspection) -> str:
    """Return the class as the subject of a sentence."""
    return shown(inspection.family.architecture) if inspection.family.architecture else "the architecture"


def listed(names: Iterable[str]) -> str:
    """Return the names in words: ``a``, ``a and b``, ``a, b, c, d and 3 more``."""
    return in_words(names, LISTED)


def verb(names: Sequence[str], singular: str, plural: str) -> str:
    """Return ``singular`` for a single name, else ``plural``."""
    return singular if len(names) == 1 else plural


def clause(names: Sequence[str], singular: str, plural: str) -> str:
    """Return the names with a verb: ``a is``, ``a and b are``."""
    return f"{listed(names)} {verb(names, singular, plural)}"


def says(inspection: Inspection, tied: bool) -> str:
    """Return the cause of the model being tied or untied: the config, or a default."""
    word = "tied" if tied else "untied"
    if levels(inspection) or any(entry.value is not None for entry in inspection.config.declared):
        return f"the config says {word}"
    if inspection.checkpoint.config is None:
        return f"a model without a config counts as {word}"
    return f"{label(inspection)} is {word} by default"


def without_head(head: str) -> str:
    """Return that an embedder needs no head, but the class of its config has one."""
    return (
        f"{listed([head])} is not stored. sentence-transformers uses no output head. "
        "A program that generates text with this class gets a random head."
    )


def are_copies(copies: Sequence[str], canonical: str) -> str:
    """Return ``a is a byte-identical copy of b``, or the plural."""
    are = clause(copies, "is a byte-identical copy", "are byte-identical copies")
    return f"{are} of {listed([canonical])}"


def capital(message: str) -> str:
    """Return a message with a capital letter, except if it starts with a name."""
    first = message.partition(" ")[0]
    # Other first words may be names.
    return message[:1].upper() + message[1:] if first in ("the", "no", "every") else message


def difference(member: Member, canonical: str, noun: str = "rows") -> str:
    """Return ``a differs from b (…)`` with the figures of the difference."""
    return f"{listed([member.name])} differs from {listed([canonical])} ({phrases.difference(member, noun)})"


def adapter_beside(inspection: Inspection) -> bool:
    """Return whether the directory of a model that transformers loads holds the config of a PEFT adapter too."""
    checkpoint = inspection.checkpoint
    loads = checkpoint.format in ("safetensors", "torch") and checkpoint.config is not None
    own = checkpoint.config_values.get("has_lora_adapter") is True  # the class loads it itself
    return loads and not own and "adapter_config.json" in checkpoint.companions
