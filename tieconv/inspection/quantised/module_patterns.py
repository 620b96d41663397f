"""Match a module's name with the patterns of a quantisation config, without running a regular expression of the file.

A pattern of the file could take exponential time. The patterns of published configs use `.*`, `.`, `^`, `$`, escaped
characters and lists of alternatives. Any further syntax is undecided.
"""

from __future__ import annotations

import re
from itertools import product

_MARKS = re.compile(r"\.\*|\\\W|\([^()]*\)|[\w.\-/]")
_ALTERNATIVES = 64
_LONGEST = 512
_ANY, _ANY_RUN = "any", "any run"


def matches_pattern(pattern: str, name: str) -> bool | None:
    """Return whether ``re.match(pattern, name)`` finds a match, or ``None`` if tieconv does not decide it."""
    spellings = _expanded(pattern)
    if spellings is None:
        return None
    return any(_matches(marks, name, whole=whole) for marks, whole in spellings)


def _expanded(pattern: str) -> list[tuple[list[str], bool]] | None:
    """Return the mark lists of each alternative, and whether the name has to end there; ``None`` if undecided."""
    if len(pattern) > _LONGEST:
        return None
    body = pattern.removeprefix("^")
    whole = body.endswith("$") and not body.endswith("\\$")
    body = body.removesuffix("$") if whole else body
    marks = _MARKS.findall(body)
    if "".join(marks) != body:
        return None
    choices = [_choices(mark) for mark in marks]
    size = 1
    for choice in choices:
        if choice is None:
            return None
        size *= len(choice)
    if size > _ALTERNATIVES:
        return None
    return [(_joined(combination), whole) for combination in product(*(choice or [] for choice in choices))]


def _choices(mark: str) -> list[list[str]] | None:
    if mark.startswith("("):
        inner = mark[1:-1].removeprefix("?:").split("|")
        split = [_MARKS.findall(text) for text in inner]
        plain = all("".join(marks) == text for marks, text in zip(split, inner, strict=True))
        return [[_unit(entry) for entry in marks] for marks in split] if plain else None
    return [[_unit(mark)]]


def _unit(mark: str) -> str:
    if mark == ".*":
        return _ANY_RUN
    return _ANY if mark == "." else mark[-1]


def _joined(combination: tuple[list[str], ...]) -> list[str]:
    return [unit for units in combination for unit in units]


def _matches(marks: list[str], name: str, *, whole: bool) -> bool:
    """Return whether the marks match a prefix of the name, or with ``whole`` all of it."""
    ends = {0}
    for mark in marks:
        if mark == _ANY_RUN:
            ends = set(range(min(ends), len(name) + 1)) if ends else set()
        else:
            ends = {end + 1 for end in ends if end < len(name) and mark in (_ANY, name[end])}
    return len(name) in ends if whole else bool(ends)
