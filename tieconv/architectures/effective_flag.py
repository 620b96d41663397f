"""Decide whether transformers 5 ties, from the flag at each level of the config."""

from __future__ import annotations

from collections.abc import Mapping

from tieconv.checkpoint.family import Family, Knowledge, Tying
from tieconv.text import listed, shown

_STATES: tuple[bool | None, ...] = (None, True, False)  # order of the letters in ``Family.truth``
_FIXED = {
    Tying.HEADLESS: "No output head: {} has none.",
    Tying.ALWAYS: "Tied: {} always ties.",
    Tying.NEVER: "Untied: {} never ties.",
}
_FLAG = "tie_word_embeddings"


def effective(family: Family, config_levels: Mapping[str, bool | None]) -> tuple[bool, str]:
    """Return whether the head is tied, and why in one sentence.

    ``config_levels`` maps ``""`` (the top level) and dotted nested paths to the flag. A missing path and ``None`` both
    mean that the level does not declare the flag. Only one nested level has an effect. If another level declares the
    flag, the sentence says that it is ignored.
    """
    if family.tying in _FIXED and family.knowledge is Knowledge.TABLE:
        return family.tying is Tying.ALWAYS, _FIXED[family.tying].format(family.architecture or "this class")
    if family.knowledge is not Knowledge.TABLE:
        return _guess(config_levels)
    top = config_levels.get("")
    if len(family.truth) == len(_STATES):
        tied = family.truth[_STATES.index(top)] == "T"
        return tied, _because(family, tied, top, "", _strays(config_levels, ()))
    nested = config_levels.get(family.levels[0])
    row = 3 * _STATES.index(top)
    tied = family.truth[row + _STATES.index(nested)] == "T"
    strays = _strays(config_levels, family.levels[:1])
    if len(set(family.truth[row : row + 3])) == 1:  # the nested flag has no effect here
        unread = strays if nested is None or nested == tied else (family.levels[0], *strays)
        return tied, _because(family, tied, top, "", unread)
    return tied, _because(family, tied, nested, family.levels[0], strays)


def gate(family: Family, config_levels: Mapping[str, bool | None]) -> bool:
    """Return whether the flag ties the gated groups.

    Classes without a tied head have such groups too, for example an encoder-decoder without a head. The table's truth
    is about the head. If the head never ties, only the top level decides, and an absent flag means tied.
    """
    if family.knowledge is not Knowledge.TABLE or not family.truth:
        return _guess(config_levels)[0]
    if family.tying is Tying.NEVER:
        return config_levels.get("") is not False
    return _letter(family, config_levels) == "T"


def unbuildable(family: Family, config_levels: Mapping[str, bool | None]) -> bool:
    """Return whether transformers 5 cannot build the class, because the text part lacks the table to tie."""
    return family.knowledge is Knowledge.TABLE and bool(family.truth) and _letter(family, config_levels) == "E"


def _letter(family: Family, config_levels: Mapping[str, bool | None]) -> str:
    top = _STATES.index(config_levels.get(""))
    if len(family.truth) == len(_STATES):
        return family.truth[top]
    return family.truth[3 * top + _STATES.index(config_levels.get(family.levels[0]))]


def _strays(config_levels: Mapping[str, bool | None], read: tuple[str, ...]) -> tuple[str, ...]:
    """Return the nested levels with a declared flag that transformers 5 does not read."""
    return tuple(path for path, value in config_levels.items() if path and value is not None and path not in read)


def _because(family: Family, tied: bool, value: bool | None, level: str, unread: tuple[str, ...]) -> str:
    if value is None:
        owner = family.architecture or "this class"
        reason = f"{_flag(level)} is absent, and the default of {owner} is {str(tied).lower()}"
    else:
        reason = f"{_flag(level)} is {str(value).lower()}"
    ignored = f" transformers 5 ignores the flag in {listed(unread)}." if unread else ""
    return f"{_verdict(tied)}: {reason}.{ignored}"


def _verdict(tied: bool) -> str:
    return "Tied" if tied else "Untied"


def _flag(level: str) -> str:
    return f"{shown(level)}.{_FLAG}" if level else _FLAG


def _guess(config_levels: Mapping[str, bool | None]) -> tuple[bool, str]:
    """Return the flag of an unknown architecture: the outermost declared value; without one, unknown."""
    for path in sorted(config_levels, key=lambda path: (path.count(".") + bool(path), path)):
        value = config_levels[path]
        if value is not None:
            reason = f"{_flag(path)} is {str(value).lower()} (unknown architecture)"
            return value, f"{_verdict(value)}: {reason}."
    return False, "Unknown: the config has no tie flag, and tieconv does not know the class."
