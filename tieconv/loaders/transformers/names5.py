"""Find which stored names transformers 5 reads, and in which order it ties them.

From `PreTrainedModel.tie_weights` and `rename_source_key` of transformers 5.23.0. Measured with every class of the
table that can be built. Every set of tied names was stored, with each flag and every spelling.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from tieconv.architectures.stored_names import known_names, locate, variants
from tieconv.checkpoint.family import Family, Role
from tieconv.loaders import release_tables

RELEASE = "transformers-5"

_PASSAGE = frozenset(("language_model", "model", "transformer"))
"""Parts of a name that the renamings of transformers 5 add and remove."""


def unread(family: Family, stored: Collection[str]) -> frozenset[str]:
    """Return the stored names of the table's tensors that transformers 5 does not know."""
    located = {locate(family, name, stored) for name in known_names(family, Role.WORD_EMBEDDING)}
    return frozenset(name for name in _not_taken(family) if name in located)


def _not_taken(family: Family) -> Sequence[str]:
    """Return the names that `locate` accepts and transformers 5 does not."""
    names: Sequence[str] = release_tables.by_type(RELEASE, "unread names").get(family.model_type, ())
    return names


def mistakable(family: Family, stored: Collection[str]) -> tuple[str, str] | None:
    """Return a table name that is not stored, and a stored name that transformers 5 may rename to it.

    It applies several renamings in turn, and so reads more spellings than `locate` knows. Such a spelling ends like
    the name and has only parts that the renamings add and remove.
    """
    names = known_names(family, Role.WORD_EMBEDDING)
    located = {name: locate(family, name, stored) for name in names}
    memory = dict(family.renames)
    known = {*located.values(), *_outer(family)}
    parts = _PASSAGE.union(*(name.split(".") for name in (family.prefix, *names, *memory.values())))
    missing = [name for name in names if located[name] is None]
    for name in stored if missing else ():
        tail = name.split(".")[-2:]
        steps_of = name.split(".")
        # It adds and removes each part at most once, so a part three times in a row stays.
        thrice = any(a == b == c for a, b, c in zip(steps_of, steps_of[1:], steps_of[2:], strict=False))
        if name in known or thrice or not parts.issuperset(steps_of):
            continue
        alike = next((lost for lost in missing if tail in _tails(lost, memory.get(lost, lost))), None)
        if alike is not None:
            return alike, name
    return None


def _tails(*names: str) -> list[list[str]]:
    """Return the last two parts of each name."""
    return [name.split(".")[-2:] for name in names]


def twice(family: Family, stored: Collection[str]) -> tuple[str, ...]:
    """Return the stored names, two or more, that the loader reads as one tensor; else an empty tuple."""
    not_taken = _not_taken(family)
    names = known_names(family, Role.WORD_EMBEDDING)
    for name in names:
        spellings = [s for s in dict.fromkeys(variants(family, name)) if s in stored and s not in not_taken]
        if len([spelling for spelling in spellings if spelling == name or spelling not in names]) > 1:
            return tuple(spellings)
    return ()


def _outer(family: Family) -> Iterator[str]:
    """Yield names of a renamed head that transformers 5 does not accept: with the prefix added or removed."""
    head, start = family.output_head, f"{family.prefix}."
    if head is not None and head in dict(family.renames):
        yield from (start + head, head.removeprefix(start))


def in_order(family: Family, names: Sequence[str]) -> list[str]:
    """Return the names without the first, in the order in which the loader ties them to the first.

    Ties that the class declares precede those of its base model.
    """
    start = f"{family.text_start}{family.text_prefix}."
    head_first = family.text_type in release_tables.names(RELEASE, "head first")
    decoder_first = family.text_type in release_tables.names(RELEASE, "decoder first")

    def rank(name: str) -> tuple[bool, bool]:
        late = name != family.output_head if head_first else name.startswith(start)
        return late, decoder_first and "encoder" in name.removeprefix(family.text_start).split(".")

    return sorted(names[1:], key=rank)


def steps(family: Family, names: Sequence[str], stored: Sequence[bool]) -> Iterator[tuple[str, str, bool]]:
    """Yield each tied pair: the source, the target, and whether the tie holds only for equal values."""
    missing = {name for name, is_stored in zip(names, stored, strict=True) if not is_stored}
    source, targets = names[0], in_order(family, names)
    for index, target in enumerate(targets):
        if target in missing:
            backup = next((name for name in targets[index + 1 :] if name not in missing), source)
            give, take = (backup if source in missing else source), target
        else:
            give, take = (target, source) if source in missing else (source, target)
        yield give, take, take not in missing
        missing.discard(take)
