"""Map a name in the architecture table to the name in a file."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace

from tieconv.architectures.class_table import exceptions
from tieconv.checkpoint.family import Family, Role


def locate(family: Family, name: str, names_in_file: Collection[str]) -> str | None:
    """Return the name in the file for the table's ``name``, or ``None`` if the file lacks the tensor.

    Files differ from the table in two ways. They may lack or have the base model's prefix: gpt2 on the Hub has
    ``wte.weight``. Or they use the names in memory, which the loader accepts too.
    """
    return next((variant for variant in variants(family, name) if variant in names_in_file), None)


def spelled(family: Family, name: str, names_in_file: Collection[str]) -> str:
    """Return the name that a missing tensor would have in a file.

    The name has no prefix if no name in the file has the prefix. transformers 4 expects the prefix on all names as
    soon as one name has it.
    """
    start = f"{family.prefix}."
    if not family.prefix or not name.startswith(start) or any(stored.startswith(start) for stored in names_in_file):
        return name
    played = {member for group in family.groups for member in (group.canonical, *group.members)}
    known = {*played, *family.output_biases, family.output_head}
    # Names that never have the prefix say nothing about the other names.
    return name.removeprefix(start) if any(stored not in known for stored in names_in_file) else name


def variants(family: Family, name: str) -> Iterator[str]:
    """Yield every name that the loader accepts for a tensor, the name in the table first."""
    spellings = [name]
    spellings += [memory for stored, memory in family.renames if stored == name]
    spellings += [stored for stored, memory in family.renames if memory == name]
    yield from spellings
    start = family.prefix + "."
    # A renamed head is outside the base model only under its new name.
    has_new_name = name == family.output_head and len(spellings) > 1
    for spelling in spellings[1:] if has_new_name else spellings:
        yield spelling.removeprefix(start) if spelling.startswith(start) else start + spelling
    # transformers 5 removes the prefix once, whatever follows.
    yield from (start + spelling for spelling in spellings if family.prefix and spelling.startswith(start))
    yield from (spelling for known, spelling in exceptions("names").get(family.model_type, {}).items() if known == name)


def renamed(family: Family, in_file: Callable[[str], str]) -> Family:
    """Return ``family`` with ``in_file(name)`` for each name, and without the table's prefix and spellings."""
    groups = tuple(
        replace(group, canonical=in_file(group.canonical), members=tuple(map(in_file, group.members)))
        for group in family.groups
    )
    return replace(
        family,
        input_embedding=family.input_embedding and in_file(family.input_embedding),
        output_head=family.output_head and in_file(family.output_head),
        output_biases=tuple(map(in_file, family.output_biases)),
        groups=groups,
        pieces=tuple(map(in_file, family.pieces)),
        prefix="",
        renames=(),
    )


def known_names(family: Family, *roles: Role) -> list[str]:
    """Return embedding, head, head biases, and the names of the tied groups; ``roles`` restricts the groups."""
    names = [family.input_embedding, family.output_head, *family.output_biases]
    for group in family.groups:
        if not roles or group.role in roles:
            names += [group.canonical, *group.members]
    return list(dict.fromkeys(name for name in names if name is not None))
