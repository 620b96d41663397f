"""Write the tie flag at every level of the config that a loader reads."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from tieconv.architectures.flag_levels import DERIVED_KEY, FLAG, levels_read, text_config
from tieconv.architectures.own_flag import is_foreign, own_flag
from tieconv.checkpoint.family import FlagMeaning
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.write_plan import OutputText, SetConfig
from tieconv.errors import RefusedError
from tieconv.formats.json.edit import set_values
from tieconv.text import shown


def set_flag(inspection: Inspection, tied: bool) -> tuple[OutputText | None, tuple[SetConfig, ...]]:
    """Return the config text with the flag set to ``tied`` at the top and at nested levels that have one.

    One level is not enough: transformers 4 obeys the nested flag, transformers 5 the top one. Some classes obey either.
    A class with `Family.unflippable` gets the flag only at the levels that decide. Returns ``(None, ())`` if every
    level has this value, or if there is no config. Raises `RefusedError` for a flag that occurs twice in one object.
    """
    document = inspection.checkpoint.config
    if document is None:
        return None, ()
    changes = (*_changes(inspection, tied), *_own(document.value, tied), *_derived(inspection, tied))
    foreign = is_foreign(document.value)
    if foreign and inspection.config.known and inspection.config.effective is tied:
        changes = tuple(change for change in changes if change.present)
    unknown = next((change.path for change in changes if not change.present), None)
    if unknown is not None and foreign:
        raise RefusedError(
            f"{shown(document.name)} is not a config of transformers, and its loader may refuse the new key "
            f"{shown(unknown)}",
            "change the model with the program that wrote it",
            "config.foreign",
        )
    if changes and document.text.count(f'"{FLAG}"') > _flag_count(document.value):
        raise RefusedError(
            f"{document.name} holds {FLAG} twice in one object, so readers disagree on its value",
            "remove one of the two entries",
            "config.repeated-flag",
        )
    if changes:
        _guard_scale(inspection)
    text = set_values(document.text, [(change.path.split("."), change.value) for change in changes])
    return (OutputText(document.name, text), changes) if changes else (None, ())


def _changes(inspection: Inspection, tied: bool) -> Iterator[SetConfig]:
    for entry in inspection.config.declared:
        if entry.value is tied or not _may_change(inspection, entry.path):
            continue
        if not entry.present and entry.path.endswith(f".{FLAG}") and entry.path not in _governing(inspection):
            continue
        yield SetConfig(entry.path, tied, entry.value, entry.present)


def _may_change(inspection: Inspection, path: str) -> bool:
    """Return whether a level may get the flag. With `Family.unflippable` only the deciding levels may."""
    level = path.removesuffix(FLAG).rstrip(".")
    return inspection.family.unflippable is None or level in levels_read(inspection.family)


def _own(config: Mapping[str, object], tied: bool, prefix: str = "") -> Iterator[SetConfig]:
    """Yield the class's own flags that override the usual one, at every level: both must agree."""
    name = own_flag(config)
    if name is not None and config[name] is not tied:
        yield SetConfig(f"{prefix}{name}", tied, config[name], True)
    for key, value in config.items():
        if isinstance(value, Mapping) and "." not in key:
            yield from _own(value, tied, f"{prefix}{key}.")


def _derived(inspection: Inspection, tied: bool) -> Iterator[SetConfig]:
    """Yield the change of the key that transformers 5 derives from the flag. If it is present, it must agree."""
    config, start = text_config(inspection), f"{inspection.family.text_level}."
    derives = FlagMeaning.DERIVES in (inspection.family.meaning_v5, inspection.family.meaning_v4)
    if derives and config.get(DERIVED_KEY, tied) is not tied and _flips(inspection, tied):
        yield SetConfig(f"{start}{DERIVED_KEY}".lstrip("."), tied, config[DERIVED_KEY], True)


def _flips(inspection: Inspection, tied: bool) -> bool:
    """Return whether the flag's value changes. An absent flag has the default value of the class."""
    entries = (entry for entry in inspection.config.declared if entry.present and entry.path == _decisive(inspection))
    declared = [entry.value for entry in entries]
    return any(value is not tied for value in declared) or (not declared and inspection.family.default_v5 is not tied)


def _guard_scale(inspection: Inspection) -> None:
    """Refuse a flag of another type: transformers 5 tests it by ``is False``, transformers 4 by truth."""
    meanings = {inspection.family.meaning_v5, inspection.family.meaning_v4}
    present = [entry for entry in inspection.config.declared if entry.present and entry.path == _decisive(inspection)]
    mistyped = next((entry for entry in present if entry.value is not False and not entry.value), None)
    if mistyped is not None and meanings != {FlagMeaning.STORAGE}:
        raise RefusedError(
            f"{mistyped.path} is {shown(json.dumps(mistyped.value))}: with it transformers 5 scales the logits of "
            f"{inspection.family.architecture}, and transformers 4 does not",
            "find out which logits are right, then write true or false into the config by hand",
            "flag.forward",
        )


def _decisive(inspection: Inspection) -> str:
    """Return the path of the flag in the config of the language model."""
    return f"{inspection.family.text_level}.{FLAG}".lstrip(".")


def _governing(inspection: Inspection) -> set[str]:
    """Return the nested paths that must have the flag even if they do not have it yet."""
    return {f"{level}.{FLAG}" for level in inspection.family.levels}


def _flag_count(value: object) -> int:
    if isinstance(value, Mapping):
        return sum((key == FLAG) + _flag_count(entry) for key, entry in value.items())
    if isinstance(value, list):
        return sum(map(_flag_count, value))
    return 0
