"""Find the prefix that a training program puts before every tensor name, such as ``app.model.``."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tieconv.architectures.stored_names import locate, renamed, variants
from tieconv.architectures.wrappers import INSIDE
from tieconv.checkpoint.family import Family


def without_wrappers(name: str) -> str:
    """Return the name without the segments that wrappers of modules add at any depth."""
    return ".".join(step for step in name.split(".") if step not in INSIDE)


def model_prefixes(family: Family, names: Collection[str], starts: Mapping[str, str]) -> tuple[str, ...]:
    """Return every prefix below which ``names`` has the input embedding of the architecture, the shortest first.

    The prefix of a guessed architecture is the one in ``starts`` for its embedding. An empty
    prefix means that the names need none.
    """
    embedding = family.input_embedding
    if embedding is None:
        return ()
    if not family.trusted or embedding in starts:
        return (starts.get(embedding, ""),)
    bare = {without_wrappers(name) for name in names}
    endings = (embedding, *(spelling for spelling in variants(family, embedding) if spelling in bare))
    for ending in endings:
        prefixes = {name[: -len(ending)] for name in bare if name == ending or name.endswith(f".{ending}")}
        if prefixes:
            return tuple(sorted(prefixes, key=lambda prefix: (len(prefix), prefix)))
    return ()


def below(prefix: str, names: Collection[str]) -> dict[str, str]:
    """Map each name of the model, without prefix and wrappers, to the name in the file."""
    stored = {without_wrappers(name): name for name in names}
    return {bare.removeprefix(prefix): name for bare, name in stored.items() if bare.startswith(prefix)}


def in_training(family: Family, names: Collection[str], starts: Mapping[str, str]) -> Family:
    """Return ``family`` with the ``names`` of a training checkpoint, if one prefix fits them; else ``family``."""
    prefixes = model_prefixes(family, names, starts) if family.trusted else ()
    stored = below(prefixes[0], names) if len(prefixes) == 1 else {}
    if all(bare == name for bare, name in stored.items()):
        return family
    return _prefixed(family, stored, prefixes[0])


def _prefixed(family: Family, stored: Mapping[str, str], prefix: str) -> Family:
    """Return ``family`` with the names in the file; ``stored`` maps the names of the model to them, as in `below`."""

    def in_file(name: str) -> str:
        return stored.get(locate(family, name, stored) or "", prefix + name)

    return renamed(family, in_file)
