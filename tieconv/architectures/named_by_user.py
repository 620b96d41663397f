"""Change a family to the names of input embedding and output head that the user gave."""

from __future__ import annotations

from dataclasses import replace

from tieconv.checkpoint.family import Family, Role, TieGroup, Tying


def with_names(family: Family, embed: str | None, head: str | None) -> Family:
    """Return ``family`` with the given names as its word-embedding pair; ``None`` keeps the family's name."""
    embedding = embed or family.input_embedding
    output = head or family.output_head
    others = tuple(group for group in family.groups if group.role is not Role.WORD_EMBEDDING)
    pair = (TieGroup(Role.WORD_EMBEDDING, embedding, (output,), True),) if embedding and output else ()
    return replace(
        family,
        input_embedding=embedding,
        output_head=output,
        tying=Tying.CAN,
        named=bool(embed and head),
        groups=pair + others,
        truth=family.truth or "FTF",
    )
