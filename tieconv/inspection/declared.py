"""Read what the config declares about tying, at every level, and derive the result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from tieconv.architectures import effective, gate
from tieconv.architectures.own_flag import foreign_flag, own_flag
from tieconv.checkpoint.family import Family, Knowledge, Role
from tieconv.checkpoint.inspection import ConfigView, Declared, State
from tieconv.checkpoint.tie_group import Tie
from tieconv.errors import UnreadableError
from tieconv.text import shown

FLAG = "tie_word_embeddings"
MAX_FLAGS = 1_000
"""Levels of a config that may declare the flag. Models with several parts have fewer than ten."""
_MAX_DEPTH = 6
_ABSENT = object()


def view_config(config: Mapping[str, object], family: Family) -> ConfigView:
    """Return the declared flags (top level first) and the tying that transformers 5 derives from them."""
    foreign = foreign_flag(config)
    if foreign is not None:
        return _foreign_view(config, *foreign)
    declared = tuple(_declared(config, family)) if config else ()
    levels = {entry.path.removesuffix(FLAG).rstrip("."): _as_flag(entry.value) for entry in declared}
    tied, why = effective(family, levels)
    architectures = config.get("architectures")
    names = tuple(str(name) for name in architectures) if isinstance(architectures, list) else ()
    known = family.knowledge is Knowledge.TABLE or any(value is not None for value in levels.values())
    if not config and not known:
        why = _NO_CONFIG
    return ConfigView(str(config.get("model_type", "")), names, declared, tied, why, known)


def _foreign_view(config: Mapping[str, object], key: str, default: bool) -> ConfigView:
    """Return what the config of another program says under its own ``key``."""
    value = config.get(key, default)
    tied = bool(value)
    states = f"is {str(tied).lower()}" if key in config else f"is absent, which means {str(default).lower()}"
    declared = (Declared(key, value if key in config else None, key in config),)
    return ConfigView("", (), declared, tied, f"{'Tied' if tied else 'Untied'}: {key} {states}.")


_NO_CONFIG = "Unknown: no config names the model's class."


def with_shared_storage(config: ConfigView, ties: tuple[Tie, ...]) -> ConfigView:
    """Return ``config`` with shared storage as the reason, if nothing else shows whether the model ties."""
    tie = next((tie for tie in ties if tie.role is Role.WORD_EMBEDDING), None)
    shared = tie and next((member for member in tie.members if member.state is State.ALIASED), None)
    if config.known or tie is None or not shared:
        return config
    pair = f"{shown(tie.canonical)} and {shown(shared.name)}"
    why = f"Unknown: {pair} share one storage, so the saved model was tied. tieconv does not know the class."
    return replace(config, why=why)


def gated(config: ConfigView, family: Family) -> bool:
    """Return whether the config ties the groups that its flag decides."""
    if not config.model_type and any(not entry.path.endswith(FLAG) for entry in config.declared):
        return config.effective  # the flag of another program
    return gate(family, {entry.path.removesuffix(FLAG).rstrip("."): _as_flag(entry.value) for entry in config.declared})


def nested(config: Mapping[str, object], path: str) -> Mapping[str, object] | None:
    """Return the object at a dotted ``path``; ``None`` if there is none."""
    value: object = config
    for key in path.split(".") if path else ():
        value = value.get(key) if isinstance(value, Mapping) else None
    return value if isinstance(value, Mapping) else None


def _declared(config: Mapping[str, object], family: Family) -> Iterator[Declared]:
    flags = dict(_flags(config, "", 0))
    if len(flags) > MAX_FLAGS:
        raise UnreadableError(
            f"config.json declares {FLAG} at {len(flags):,} levels, but tieconv reads at most {MAX_FLAGS:,}",
            "remove the levels that no loader reads",
            "config.flags",
        )
    for level in ("", *family.levels):
        path = f"{level}.{FLAG}" if level else FLAG
        if path not in flags and nested(config, level) is not None:
            flags[path] = _ABSENT
    for path in sorted(flags, key=lambda path: (path.count("."), path)):
        present = flags[path] is not _ABSENT
        yield Declared(path, flags[path] if present else None, present)


def _flags(config: Mapping[str, object], prefix: str, depth: int) -> Iterator[tuple[str, object]]:
    flag = own_flag(config)
    if flag is not None:
        yield f"{prefix}{FLAG}", config[flag]
    for key, value in config.items():
        if key == FLAG and flag is None:
            yield f"{prefix}{key}", value
        elif (
            isinstance(value, Mapping) and depth < _MAX_DEPTH and key.isidentifier()
        ):  # an attribute, as loaders have it
            yield from _flags(value, f"{prefix}{key}.", depth + 1)


def _as_flag(value: object) -> bool | None:
    """Return the flag as Python readers take it: absent stays absent, any other value by its truth value."""
    return None if value is None else bool(value)
