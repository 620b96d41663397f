"""Find which stored names transformers 4 reads. The table has the names of transformers 5.

From `_load_pretrained_model` and `_get_key_renaming_mapping` of transformers 4.48.3 and 4.57.6. Measured with both
releases and each of their classes in the table. Embedding and head were stored under every name that `locate` accepts.
"""

from __future__ import annotations

from collections.abc import Collection

from tieconv.architectures.stored_names import known_names, locate
from tieconv.checkpoint.family import Family
from tieconv.loaders import release_tables


def unread(family: Family, stored: Collection[str], version: str) -> frozenset[str]:
    """Return the stored names that transformers ``version`` (`4.48` or `4.57`) does not know."""
    reader = _Reader(family, stored, version)
    located = ((name, locate(family, name, stored)) for name in known_names(family))
    return frozenset(spelled for name, spelled in located if spelled is not None and not reader.reads(name, spelled))


def corrupt(family: Family, stored: Collection[str], version: str) -> str | None:
    """Return a stored name of the head for which transformers 4 refuses a file without any prefix, or ``None``."""
    reader = _Reader(family, stored, version)
    if not reader.adds_prefix:
        return None
    names = (locate(family, name, stored) for name in known_names(family) if not name.startswith(reader.start))
    return next((name for name in names if name is not None and not name.startswith(reader.start)), None)


class _Reader:
    """Reads the names of one file as one release does: unchanged, with the prefix added, or with it removed."""

    def __init__(self, family: Family, stored: Collection[str], version: str) -> None:
        release = f"transformers-{version}"
        prefix = release_tables.by_type(release, "prefix").get(family.model_type, family.prefix)
        in_memory = family.model_type in release_tables.names(release, "names in memory")
        self.memory = dict(family.renames) if in_memory else {}
        self.start = f"{prefix}."
        # Without the dot, as in its source.
        prefixed = bool(prefix) and any(name.startswith(prefix) for name in stored)
        expected = bool(prefix) and any(
            self.memory.get(name, name).startswith(self.start) for name in known_names(family)
        )
        self.adds_prefix = expected and not prefixed
        self.drops_prefix = prefixed and not expected

    def reads(self, known: str, name: str) -> bool:
        """Return whether the tensor stored under ``name`` becomes the one that the table calls ``known``."""
        if self.adds_prefix:
            name = self.start + name
        elif self.drops_prefix and not name.startswith(self.start):
            return False
        elif self.drops_prefix:
            name = name.removeprefix(self.start)
        return name in (known, self.memory.get(known))
