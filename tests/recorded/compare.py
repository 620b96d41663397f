"""Compare two recordings: what differs, by command and JSON path, less what is known to differ."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from tests.recorded.models import Recording

KNOWN = Path(__file__).with_name("known.json")
"""Differences that a step intends: `command`, `path`, optionally `model`, `before` and `after`, and the `reason`."""

ABSENT = "(absent)"
_EXAMPLES = 3
_LONGEST = 300
_IDENTITY = (("rule",), ("name", "version"), ("canonical",))
"""Keys that say which entries of two lists are the same one."""


@dataclass(frozen=True)
class Difference:
    """One value that is not the same in both recordings."""

    command: str
    path: str
    model: str
    before: Any
    after: Any


@dataclass
class Allowed:
    """Known differences, each with its reason, and how many each of them covers."""

    entries: list[dict[str, str]]
    used: Counter[int] = field(default_factory=Counter)

    @classmethod
    def read(cls, path: Path) -> Allowed:
        entries = json.loads(path.read_text(encoding="utf-8"))
        for entry in entries:
            assert entry.keys() <= {"command", "path", "model", "before", "after", "reason"}, entry
            assert entry["command"] and entry["path"] and entry["reason"].strip(), entry
        return cls(entries)

    def covers(self, difference: Difference) -> bool:
        """Say whether an entry's patterns all match, and count it."""
        for number, entry in enumerate(self.entries):
            patterns = ((key, entry[key]) for key in entry if key != "reason")
            if all(fnmatchcase(_text(getattr(difference, key)), _literal(pattern)) for key, pattern in patterns):
                self.used[number] += 1
                return True
        return False


def compare(before: Recording, after: Recording) -> Iterator[Difference]:
    """Yield every difference; a model or a command in one recording alone is one."""
    for model in sorted(before["models"].keys() | after["models"].keys()):
        one, two = before["models"].get(model), after["models"].get(model)
        if one is None or two is None or one["content"] != two["content"]:
            yield Difference("(models)", "content", model, one and one["content"], two and two["content"])
            continue
        for command in sorted(one["answers"].keys() | two["answers"].keys()):
            digests = one["answers"].get(command), two["answers"].get(command)
            if digests[0] != digests[1]:
                values = (
                    side["answers"].get(digest, ABSENT) for side, digest in zip((before, after), digests, strict=True)
                )
                yield from (
                    Difference(command, path or "(whole)", model, *pair) for path, *pair in _differing("", *values)
                )


_OF_FINDINGS = ("description", "detail", "effect", "error", "headline", "hint", "message", "reason", "verdict", "why")
_OF_PLANS = ("because", "note", "notes", "refusal", "says", "sentence", "stderr", "summary")
SENTENCES = frozenset((*_OF_FINDINGS, *_OF_PLANS))
"""Keys whose values are sentences, and nothing that a program reads."""


def without_sentences(recording: Recording) -> Recording:
    """Return the recording without its sentences and screens: exit codes and the rest of each JSON stay.

    That an answer is an error, and how many notes it has, stays too.
    """
    return {**recording, "answers": {digest: _bare(answer) for digest, answer in recording["answers"].items()}}


def _bare(value: Any) -> Any:
    if isinstance(value, dict):
        bare = {key: _bare(entry) for key, entry in value.items() if key not in SENTENCES and key != "stdout"}
        if isinstance(value.get("stdout"), dict):
            bare["stdout"] = _bare(value["stdout"])
        return bare | {"error": bool(value["error"])} if "error" in value else bare
    return [_bare(entry) for entry in value] if isinstance(value, list) else value


def report(differences: Iterable[Difference], allowed: Allowed) -> int:
    """Print the differences by command and path, and return the exit code."""
    groups: dict[tuple[str, str], list[Difference]] = {}
    for difference in differences:
        if not allowed.covers(difference):
            groups.setdefault((difference.command, difference.path), []).append(difference)
    for (command, path), group in sorted(groups.items(), key=lambda item: (-len(item[1]), item[0])):
        print(f"{len(group)} × {command}: {path}")
        for one in group[:_EXAMPLES]:
            print(f"    {one.model}")
            print(f"      before {_text(one.before)[:_LONGEST]}")
            print(f"      after  {_text(one.after)[:_LONGEST]}")
    for number, entry in enumerate(allowed.entries):
        print(f"allowed {allowed.used[number]} × {entry['command']}: {entry['path']}: {entry['reason']}")
    print(f"{sum(map(len, groups.values()))} differences in {len(groups)} places; {allowed.used.total()} allowed")
    return 1 if groups else 0


def _differing(path: str, one: Any, two: Any) -> Iterator[tuple[str, Any, Any]]:
    if json.dumps(one, sort_keys=True) == json.dumps(two, sort_keys=True):  # in Python 1 == 1.0 == True
        return
    if isinstance(one, dict) and isinstance(two, dict):
        for key in sorted(one.keys() | two.keys()):
            yield from _differing(f"{path}.{key}".lstrip("."), one.get(key, ABSENT), two.get(key, ABSENT))
    elif isinstance(one, list) and isinstance(two, list):
        yield from _differing_lists(path, one, two)
    else:
        yield path, one, two


def _differing_lists(path: str, one: list[Any], two: list[Any]) -> Iterator[tuple[str, Any, Any]]:
    keys = next((keys for keys in _IDENTITY if _identified(one, keys) and _identified(two, keys)), None)
    if keys is not None and one and two:
        sides = [{" ".join(str(entry[key]) for key in keys): entry for entry in side} for side in (one, two)]
        if list(sides[0]) != list(sides[1]) and sorted(sides[0]) == sorted(sides[1]):
            yield f"{path}[] (order)", list(sides[0]), list(sides[1])
        for name in sorted(sides[0].keys() | sides[1].keys()):
            yield from _differing(f"{path}[{name}]", sides[0].get(name, ABSENT), sides[1].get(name, ABSENT))
        return
    texts, others = ([_text(entry) for entry in side] for side in (one, two))
    for kind, start, end, first, last in SequenceMatcher(None, texts, others, autojunk=False).get_opcodes():
        if kind == "equal":
            continue
        for offset in range(max(end - start, last - first)):
            pair = [
                side[begin + offset] if begin + offset < stop else ABSENT
                for side, begin, stop in ((one, start, end), (two, first, last))
            ]
            yield from _differing(f"{path}[]", *pair)


def _identified(entries: list[Any], keys: tuple[str, ...]) -> bool:
    """Say whether every entry has all keys, and no two have the same values."""
    if not all(isinstance(entry, dict) and entry.keys() >= set(keys) for entry in entries):
        return False
    return len({tuple(str(entry[key]) for key in keys) for entry in entries}) == len(entries)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)


def _literal(pattern: str) -> str:
    """Only `*` is a wildcard: brackets belong to paths."""
    return pattern.replace("[", "[[]").replace("?", "[?]")
