"""Map each tied parameter to the stored tensor that transformers 4 loads into it.

Measured with 4.48.3 and 4.57.6 and each of their classes in the table. Every set of names of the word embeddings was
stored, each tensor filled with a different number. The flag was true, false and absent.
"""

from __future__ import annotations

from collections.abc import Sequence

from tieconv.checkpoint.family import Family
from tieconv.loaders import release_tables

NO_VALUES = -1
"""The parameter has no values: the loader moved nothing into its memory."""


def _of_type(family: Family, version: str, table: str) -> bool:
    return family.text_type in release_tables.names(f"transformers-{version}", table)


def last_wins(family: Family, version: str) -> bool:
    """Return whether several stored tables become one parameter, with the table that is read last."""
    return _of_type(family, version, "last table wins")


def _gives_its_table(family: Family, version: str) -> bool:
    return family.model_type in release_tables.names(f"transformers-{version}", "gives its table")


def sources(
    family: Family,
    names: Sequence[str],
    stored: Sequence[bool],
    version: str,
    *,
    tied: bool,
    last_table: int | None = None,
) -> tuple[int | None, ...]:
    """Return for each of ``names`` the index of the name whose stored values it gets, ``None`` for random values.

    ``names`` are those in the architecture table, the canonical one first. ``last_table`` is the index of the last
    table in the file; the head does not count.
    """
    own = _own(family, names, stored, version, last_table)
    tied = (tied or _of_type(family, version, "always tied")) and not _of_type(family, version, "never tied")
    if not tied and _of_type(family, version, "head is decoder's table"):
        return _decoder_is_head(names, own, version)
    if not tied or not any(stored):
        # This class ignores the flag and takes only missing names from the shared table.
        alone = not _gives_its_table(family, version)
        fills = _of_type(family, version, "fills what is missing") and stored[0] and alone
        return tuple(0 if fills and index is None else index for index in own)
    base = _base(family, names, own, version)
    return tuple(base for _ in names)


def source_name(family: Family, names: Sequence[str], version: str) -> str:
    """Return the one of ``names`` whose values the tied names get."""
    start = family.text_start + release_tables.by_type(f"transformers-{version}", "tied to").get(
        family.text_type, names[0]
    )
    return start if start in names else names[0]


def _own(
    family: Family, names: Sequence[str], stored: Sequence[bool], version: str, last_table: int | None
) -> list[int | None]:
    """Return the sources before any tie: each name itself, except for a module that several names share."""
    own: list[int | None] = [index if is_stored else None for index, is_stored in enumerate(stored)]
    if not _of_type(family, version, "one table") and not _gives_its_table(family, version):
        return own
    body = [index for index, name in enumerate(names) if name != family.output_head]
    first = next((index for index in body if stored[index]), None)
    shared = last_table if last_table is not None and last_wins(family, version) else first
    for index in body:
        own[index] = shared
    return own


def _base(family: Family, names: Sequence[str], own: list[int | None], version: str) -> int | None:
    """Return the index of the name whose values the tied names get."""
    source = own[names.index(source_name(family, names, version))]
    if source is not None:
        return source
    if version == "4.57":
        decoder = (index for index, name in enumerate(names) if "decoder" in name.split("."))
        table = next((own[index] for index in decoder if own[index] is not None), None)
        return table if _of_type(family, version, "tied to decoder") and table is not None else NO_VALUES
    body = [own[index] for index, name in enumerate(names) if name != family.output_head and own[index] is not None]
    if body and not _of_type(family, version, "head is decoder's table"):
        return body[0]
    head = own[names.index(family.output_head)] if family.output_head in names else None
    random = release_tables.names(f"transformers-{version}", "random without embedding")
    if head is not None and not {family.architecture, family.text_class} & random:
        return head
    return body[0] if body else None


def _decoder_is_head(names: Sequence[str], own: list[int | None], version: str) -> tuple[int | None, ...]:
    """Return the sources if the decoder's table and the head are one parameter, with the head's values."""
    decoder = [index for index, name in enumerate(names) if "decoder" in name.split(".")]
    head = next(own[index] for index in decoder if names[index].endswith("output_projection.weight"))
    if head is None and version == "4.57" and any(own[index] is not None for index in decoder):
        head = NO_VALUES
    return tuple(head if index in decoder else own[index] for index in range(len(names)))
