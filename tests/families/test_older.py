"""What transformers 4 makes of names: the rules held against what its releases loaded, for every class of the table."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.families import older
from tests.loops import case
from tieconv.architectures import find, locate
from tieconv.checkpoint.family import Family, Role, Tying
from tieconv.loaders import release_tables
from tieconv.loaders.transformers4 import NO_VALUES, corrupt, sources, unread

RECORDED = json.loads(older.RECORDED.read_text(encoding="utf-8"))
UNCLEAR_448 = ("longt5", "m2m_100", "nllb-moe", "seamless_m4t", "seamless_m4t_v2", "switch_transformers")
"""Types of which nothing is claimed for 4.48 where the shared table is not stored, beside BART and its kin."""


def _letters(family: Family, told: list[str], held: list[bool], flag: bool, version: str) -> str:
    """What is expected of a file whose tables are stored in the order of their names."""
    found = {name: name if stored else None for name, stored in zip(told, held, strict=True)}
    empty: set[str] = set()
    for group in family.groups:
        names = (group.canonical, *group.members)
        if group.role is not Role.WORD_EMBEDDING or not set(names) <= set(told):
            continue
        stored = [held[told.index(name)] for name in names]
        tied = flag and family.tying is not Tying.NEVER
        tied = tied if family.output_head in names else tied or not group.gated
        body = [place for place, name in enumerate(names) if stored[place] and name != family.output_head]
        last = max(body, key=lambda place: names[place], default=None)
        for name, place in zip(names, sources(family, names, stored, version, tied=tied, last_table=last), strict=True):
            empty |= {name} if place == NO_VALUES else set()
            found[name] = None if place is None or place == NO_VALUES else names[place]
    return "".join("m" if n in empty else "r" if (s := found[n]) is None else str(told.index(s) + 1) for n in told)


def _cells(kind: str, version: str) -> Iterator[tuple[str, str, str]]:
    """For each set of stored names under each flag: its name, the expected letters and those seen."""
    family = find({"architectures": [kind]})
    told = older.names(family)
    for flag, words in RECORDED[kind]["ties"][older.VERSIONS.index(version)].items():
        on = bool(family.default_v4) if flag == "None" else flag == "True"
        for mask, seen in enumerate(words.split(), 1):
            held = [bool(mask >> place & 1) for place in range(len(told))]
            if "x" in seen or _is_unclear(family, held, on, version):
                continue
            yield f"{flag} {mask}", _letters(family, told, held, on, version), seen


def _is_unclear(family: Family, held: list[bool], on: bool, version: str) -> bool:
    """The states of which nothing is claimed."""
    if family.architecture in release_tables.names(f"transformers-{version}", "head tied here alone"):
        return on or family.model_type == "pop2piano"
    older_one = version == "4.48"
    if older_one and family.model_type == "fsmt" and not on and not held[2]:
        return True
    return older_one and not all(held) and (family.bias_is_row or (family.model_type in UNCLEAR_448 and not on))


@pytest.mark.parametrize("version", older.VERSIONS)
def test_whose_values_a_name_has(version: str) -> None:
    """Every set of stored names under every flag: the places are those that were loaded.

    For 4.48 it is which names are one and which are random: which of two stored ones stays nothing says.
    """
    same = _parts if version == "4.48" else str
    for kind in RECORDED:
        cells = [(name, *map(_whole, letters)) for name, *letters in _cells(kind, version)]
        assert [cell for cell in cells if same(cell[1]) != same(cell[2])] == [], kind


def _whole(letters: str) -> str:
    """The letters, or that the model is none: a tensor of it has no values."""
    return "m" if "m" in letters else letters


def _parts(letters: str) -> str:
    return "".join(str(letters.index(letter)) if letter.isdigit() else letter for letter in letters)


@pytest.mark.parametrize("version", older.VERSIONS)
def test_which_names_are_known(version: str) -> None:
    """Under every spelling of the embedding and the head: a name that is unread is random, a corrupt file refused."""
    for kind in RECORDED:
        with case(kind):
            hold_the_names(kind, version)


def hold_the_names(kind: str, version: str) -> None:
    """Compare the names of one class with those that a release read."""
    family, seen = find({"architectures": [kind]}), RECORDED[kind]["names"][older.VERSIONS.index(version)]
    if seen["table"] != "12":
        assert set(seen["table"]) & set("rmx") or family.model_type in ("lxmert", "perceiver")
        return
    pair = older.pair(family)
    start = f"{family.prefix}."
    body = [f"{start}layers.0.weight"] if any(name.startswith(start) for name in pair) else ["layers.0.weight"]
    for spelled, letters in seen.items():
        if spelled == "table" or (kind, spelled) == ("LongT5ForConditionalGeneration", "transformer.shared.weight"):
            continue
        new = dict(older.spellings(family, [*pair, *body])).get(spelled)
        if new is None:  # transformers 5 does not know it either
            assert locate(family, pair[0], [spelled]) is None and "r" in letters
            continue
        stored = {new.get(name, name) for name in (*pair, *body)}
        lost = unread(family, stored, version)
        found = [locate(family, name, stored) for name in pair]
        expected = "".join("r" if name in lost else str(place) for place, name in enumerate(found, 1))
        refused = corrupt(family, stored, version) is not None
        assert ("e" if refused else expected) == letters.replace("m", "r"), spelled


def test_the_record_is_of_the_table() -> None:
    """Every class that transformers 4 may have is in the record."""
    assert list(RECORDED) == older.classes() and len(RECORDED) > 250
