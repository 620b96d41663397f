"""From a name in the table to the name that a given file uses."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from tieconv.checkpoint.family import Family


def locate(family: Family, name: str, names_in_file: Collection[str]) -> str | None:
    """The name under which a file holds the tensor that the table calls ``name``.

    Files differ from the table in two ways: they lack or carry the base model's prefix (the hub's gpt2 has
    ``wte.weight``), or they use names in memory, which the loader accepts as well. ``None``: not in the file.
    """
    return next((variant for variant in variants(family, name) if variant in names_in_file), None)


def spelled(family: Family, name: str, names_in_file: Collection[str]) -> str:
    """The name under which a file would hold a tensor that it lacks: without the prefix in a file that has it nowhere.

    transformers 4 takes a file for prefixed as soon as one name of it is, and then misses all the others.
    """
    start = f"{family.prefix}."
    if not family.prefix or not name.startswith(start) or any(other.startswith(start) for other in names_in_file):
        return name
    played = {member for group in family.groups for member in (group.canonical, *group.members)}
    told = {*played, *family.output_biases, family.output_head}
    # Names that never carry the prefix say nothing about the others.
    return name.removeprefix(start) if any(other not in told for other in names_in_file) else name


def variants(family: Family, name: str) -> Iterator[str]:
    """Every name that the loader takes for a tensor, the table's own name first."""
    spellings = [name]
    spellings += [memory for stored, memory in family.renames if stored == name]
    spellings += [stored for stored, memory in family.renames if memory == name]
    yield from spellings
    if not family.prefix:
        return
    start = family.prefix + "."
    for spelling in spellings:
        yield spelling.removeprefix(start) if spelling.startswith(start) else start + spelling


def is_bare(family: Family, names_in_file: Collection[str]) -> bool:
    """Whether a file leaves the base model's prefix out of every name, as the hub's gpt2 does.

    transformers 4 takes such a file for one of the base model alone, and refuses it where a name of the whole model
    stands there too (modeling_utils.py, _get_key_renaming_mapping).
    """
    inside = (family.input_embedding or "").startswith(f"{family.prefix}.")
    known = bool(family.prefix) and inside and not family.levels
    return known and not any(name.startswith(family.prefix) for name in names_in_file)


def beside_base(family: Family) -> tuple[str, ...]:
    """The head and its biases, where they are no part of the base model."""
    names = (family.output_head, *family.output_biases)
    return tuple(name for name in names if name and not name.startswith(f"{family.prefix}."))
