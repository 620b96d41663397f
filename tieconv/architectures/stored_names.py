"""From a name in the table to the name that a given file uses."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from tieconv.architectures.class_table import exceptions
from tieconv.checkpoint.family import Family, Role


def locate(family: Family, name: str, names_in_file: Collection[str]) -> str | None:
    """Return the name under which a file holds the tensor that the table calls ``name``.

    Files differ from the table in two ways: they lack or carry the base model's prefix (the hub's gpt2 has
    ``wte.weight``), or they use names in memory, which the loader accepts as well. ``None``: not in the file.
    """
    return next((variant for variant in variants(family, name) if variant in names_in_file), None)


def spelled(family: Family, name: str, names_in_file: Collection[str]) -> str:
    """Return the name under which a file would hold a tensor that it lacks.

    It has no prefix in a file that has the prefix nowhere.
    transformers 4 takes a file for prefixed as soon as one name of it is, and then misses all the others.
    """
    start = f"{family.prefix}."
    if not family.prefix or not name.startswith(start) or any(stored.startswith(start) for stored in names_in_file):
        return name
    played = {member for group in family.groups for member in (group.canonical, *group.members)}
    known = {*played, *family.output_biases, family.output_head}
    # Names that never carry the prefix say nothing about the others.
    return name.removeprefix(start) if any(stored not in known for stored in names_in_file) else name


def variants(family: Family, name: str) -> Iterator[str]:
    """Yield every name that the loader takes for a tensor, the table's own name first."""
    spellings = [name]
    spellings += [memory for stored, memory in family.renames if stored == name]
    spellings += [stored for stored, memory in family.renames if memory == name]
    yield from spellings
    start = family.prefix + "."
    # A head that is renamed has its place outside the base model under the new name alone.
    renamed = name == family.output_head and len(spellings) > 1
    for spelling in spellings[1:] if renamed else spellings:
        yield spelling.removeprefix(start) if spelling.startswith(start) else start + spelling
    # transformers 5 takes the prefix away once, whatever follows it.
    yield from (start + spelling for spelling in spellings if family.prefix and spelling.startswith(start))
    yield from (spelling for known, spelling in exceptions("names").get(family.model_type, {}).items() if known == name)


def known_names(family: Family, *roles: Role) -> list[str]:
    """Return embedding, head, head biases, and the names of the tie groups, with ``roles`` of those groups alone."""
    names = [family.input_embedding, family.output_head, *family.output_biases]
    for group in family.groups:
        if not roles or group.role in roles:
            names += [group.canonical, *group.members]
    return list(dict.fromkeys(name for name in names if name is not None))
