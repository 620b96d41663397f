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
