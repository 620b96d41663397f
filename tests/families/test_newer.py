"""What transformers 4 and 5 make of names: predictions held against what they loaded, for every class."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import tieconv as api
from fixtures import zoo
from tests.consumers.grid import _flagged
from tests.families import newer, older
from tests.loops import case
from tieconv.architectures import find, locate
from tieconv.architectures.stored_names import variants
from tieconv.checkpoint.family import Family, Role, Tying
from tieconv.checkpoint.finding import Prediction
from tieconv.comparison.pair import views
from tieconv.loaders import release_tables
from tieconv.loaders.transformers4 import NO_VALUES, corrupt, sources, unread as unread_by_4
from tieconv.loaders.transformers5 import mistakable, unread

RECORDED = json.loads(newer.RECORDED.read_text(encoding="utf-8"))
SPLIT = ("Molmo2ForConditionalGeneration",)
"""Classes of which nothing is claimed."""
UNTOLD = {
    (kind, f"ties {flag} 14")
    for kind in ("SeamlessM4TForTextToText", "SeamlessM4Tv2ForTextToText")
    for flag in ("True", "None")
}
"""Files of which nothing is claimed: whether two tables are equal decides, and neither is the one compared with."""
LETTER = re.compile(r"[0-9a-z-]'*")
VALUES = {"True": True, "False": False, "None": None}


@dataclass(frozen=True)
class File:
    """One file of the record: the flag at each level, for each stored name its place, the names asked for, letters."""

    label: str
    flags: tuple[bool | None, ...]
    stored: Mapping[str, int]
    told: list[str]
    word: str

    @property
    def letters(self) -> list[str]:
        return LETTER.findall(self.word)


def files(family: Family) -> Iterator[File]:
    """The files of a class in which tied names, biases and flags vary."""
    record, told, biases = RECORDED[family.architecture], older.names(family), list(family.output_biases)
    levels = 1 + bool(family.levels)
    for part, names in (("ties", told), ("biases", biases)):
        for flag, words in record.get(part, {}).items():
            for mask, word in enumerate(words.split(), part == "ties"):
                held = {name: place for place, name in enumerate(names) if mask >> place & 1}
                kept = dict.fromkeys(told, 9) if part == "biases" else {}
                yield File(f"{part} {flag} {mask}", (VALUES[flag],) * levels, kept | held, names, word)
    for key, word in record["equal"].items():
        flag, _, apart = key.partition(" ")
        held = dict.fromkeys(told, int(apart == "1")) | ({told[int(apart) - 1]: int(apart) - 1} if apart else {})
        yield File(f"equal {key}", (VALUES[flag],) * levels, held, told, word)
    for key, words in record.get("levels", {}).items():
        flags = tuple(VALUES[value] for value in key.split())
        for whole, word in enumerate(words.split()):
            held = {name: place for place, name in enumerate(told) if whole or name != family.output_head}
            yield File(f"levels {key} {whole}", flags, held, told, word)


def is_plain(family: Family) -> bool:
    """Whether the flag decides over one pair and nothing else is tied, so that a few files stand for all."""
    return family.tying is Tying.CAN and len(older.names(family)) == 2 and not family.misfit


def outcome(family: Family, file: File) -> str:
    """The outcome that letters stand for."""
    if file.word == "x":
        return "error"
    if set(file.word) & set("rq"):
        return "random"
    stored = {str(place + 1) for name, place in file.stored.items() if name in file.told}
    if stored - {letter.rstrip("'") for letter in file.letters}:
        return "discarded"
    one = (family.input_embedding, family.output_head)
    return "tied" if len({file.letters[file.told.index(name)] for name in one if name}) == 1 else "untied"


def predicted(folder: Path, family: Family, file: File) -> Prediction:
    """The prediction for a small file of these names; names of one place hold the same numbers."""
    config = {"architectures": [family.architecture], "model_type": family.model_type}
    (folder / "config.json").write_text(json.dumps(_flagged(config, family, file.flags)))
    _save(folder / "model.safetensors", family, {body(family): 8, **file.stored})
    (found,) = api.inspect(folder, consumers="transformers>=5.4").consumers
    return found


def body(family: Family) -> str:
    """A name of the base model's."""
    start = f"{family.prefix}."
    return f"{start if any(name.startswith(start) for name in older.pair(family)) else ''}layers.0.weight"


def _save(path: Path, family: Family, stored: Mapping[str, int]) -> None:
    header: dict[str, Any] = {}
    data = b""
    for name, place in stored.items():
        rows = 3 if family.misfit and name == family.input_embedding else 2
        shape = [2] if name in family.output_biases else [rows, 2]
        made = struct.pack("<f", (place + 1) / 8) * (shape[0] * 2 // (1 if len(shape) == 2 else 2))
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(made)]}
        data += made
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def _agrees(family: Family, file: File, found: Prediction) -> bool:
    """Whether a claim is what was seen, the names told as random and the biases told as lost included."""
    if file.label.startswith("biases"):
        held = [name for name in file.told if name in file.stored]
        lost = [name for name in held if str(file.told.index(name) + 1) not in file.letters[-1]]
        return sorted(found.dropped) == sorted(lost)
    seen = outcome(family, file)
    if seen != "random":
        return found.outcome == seen
    random = {name for name, letter in zip(file.told, file.letters, strict=True) if letter in "rq"}
    return found.outcome == seen and set(found.tensors) == random


PARTS = 4
"""The fast suite takes the first part of the classes, the slow one the others."""


def spread(kinds: list[str]) -> list[str]:
    """Order classes so that each part has some of every kind of record: how they tie, how many names they have."""
    families = {kind: find({"architectures": [kind]}) for kind in kinds}

    def kind_of_record(kind: str) -> tuple[object, ...]:
        one = families[kind]
        return one.tying, len(older.names(one)), len(one.output_biases), bool(one.levels), bool(one.misfit), kind

    return sorted(kinds, key=lambda kind: tuple(map(str, kind_of_record(kind))))


PLAIN = {"True": "11 22 12", "False": "1r r2 12"}
"""The record of every class that ties one pair by its flag, filled with two numbers."""


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in range(1, PARTS))])
def test_no_claim_is_wrong(part: int, tmp_path: Path) -> None:
    """Every set of tied names, equal or not, every set of biases, under every flag: it is as `from_pretrained` has it.

    Of a class that ties one pair by its flag it is the embedding alone; the record says that others do alike.
    """
    for kind in spread([kind for kind in RECORDED if kind not in SPLIT])[part::PARTS]:
        with case(kind):
            hold_the_claims(kind, tmp_path)


def hold_the_claims(kind: str, tmp_path: Path) -> None:
    """Compare the predictions for the files of one class with what transformers 5 loaded."""
    family = find({"architectures": [kind]})
    told = list(files(family))
    if is_plain(family):
        assert RECORDED[kind]["ties"].items() >= PLAIN.items()
        told = [file for file in told if len(file.stored) == 1]
    wrong = []
    for file in told:
        found = predicted(tmp_path, family, file)
        claims = found.outcome != "unknown"
        if claims is ((kind, file.label) in UNTOLD) or (claims and not _agrees(family, file, found)):
            wrong.append((file.label, file.word, str(found.outcome), found.detail))
    assert wrong == []


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_diff_sees_the_same_values(part: int, tmp_path: Path) -> None:
    """Whose values each name has, as `diff` compares them: the places that were loaded, for every set of names."""
    several = [kind for kind in RECORDED if len(older.names(find({"architectures": [kind]}))) > 2]
    for kind in spread(several)[part::PARTS]:
        with case(kind):
            hold_the_values(kind, tmp_path)


def hold_the_values(kind: str, tmp_path: Path) -> None:
    """Compare the values of one class's names with the places that transformers 5 loaded."""
    family, wrong = find({"architectures": [kind]}), []
    start = f"{family.prefix}."
    for file in files(family):
        if not file.label.startswith("ties"):
            continue
        predicted(tmp_path, family, file)
        newest = views(api.inspect(tmp_path))[0]
        found = [newest.sources.get(name.removeprefix(start)) for name in file.told]
        places = [None if one is None else str(file.told.index(one.record.name) + 1) for one in found]
        if places != [None if letter in "rq" else letter for letter in file.letters]:
            wrong.append((file.label, file.word, places))
    assert wrong == []


def test_which_names_are_known() -> None:
    """Under every spelling of the embedding and the head: a name that is unread is random, any other is read."""
    for kind in RECORDED:
        if kind not in SPLIT:
            with case(kind):
                hold_the_names(kind)


def hold_the_names(kind: str) -> None:
    """Compare the names of one class with those that transformers 5 read."""
    family = find({"architectures": [kind]})
    pair, others = older.pair(family), [name for name in older.names(family) if name not in older.pair(family)]
    every = [*pair, *others, body(family)]
    spellings = dict(older.spellings(family, every))
    spellings["all prefixed"] = {name: f"{family.prefix}.{name}" for name in every}
    for spelled, letters in RECORDED[kind]["names"].items():
        stored = {spellings[spelled].get(name, name) for name in every}
        lost, found = unread(family, stored), [locate(family, name, stored) for name in pair]
        expected = "".join("r" if name is None or name in lost else str(place) for place, name in enumerate(found, 1))
        assert mistakable(family, stored) is None or "r" in letters, spelled
        assert expected == letters.split()[0] or len(set(pair)) == 1, spelled


CHAINED = (
    "AriaForConditionalGeneration", "BailingHybridForCausalLM", "CohereAsrForConditionalGeneration",
    "Cosmos3EdgeForConditionalGeneration", "DeepseekOcr2ForConditionalGeneration", "DeepseekV4ForCausalLM",
    "GPT2LMHeadModel", "Kimi_K25ForConditionalGeneration", "Llama4ForConditionalGeneration", "LlamaForCausalLM",
    "Qwen2VLForConditionalGeneration", "Qwen3VLForConditionalGeneration", "T5Gemma2ForConditionalGeneration",
)  # fmt: skip
"""Classes with and without renamings that follow each other."""


@pytest.mark.parametrize("kind", CHAINED)
def test_names_against_the_renamings(kind: str) -> None:
    """Each name that is taken leads to its tensor; a name that leads there and is not taken is told as doubtful."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightRenaming, rename_source_key

    family, model = find({"architectures": [kind]}), zoo.instantiate(kind, zoo.tiny_config(kind), "meta")
    mapping, memory = get_model_conversion_mapping(model), model.state_dict()
    renamings = [entry for entry in mapping if isinstance(entry, WeightRenaming)]
    converters = [entry for entry in mapping if not isinstance(entry, WeightRenaming)]

    def reads(name: str) -> str:
        found, _ = rename_source_key(name, renamings, converters, model.base_model_prefix, memory)
        if found not in memory and name in memory:
            found, _ = rename_source_key(name, [], [], model.base_model_prefix, memory)
        return str(found)

    for told in older.names(family):
        target = dict(family.renames).get(told, told)
        for name in variants(family, told):
            assert (reads(name) == target) is (not unread(family, {name})), name
        rest = [name for name in older.names(family) if name != told]
        for middle in ("model", "language_model.model", "model.language_model.model", "transformer.model"):
            odd = f"{middle}.{'.'.join(target.split('.')[-2:])}"
            if reads(odd) == target and odd not in variants(family, told):
                assert mistakable(family, [*rest, odd]) == (told, odd)


def test_the_record_is_of_the_table() -> None:
    """Every class that can be built is in the record."""
    assert list(RECORDED) == newer.classes() and len(RECORDED) > 350


RECORDED_BY_4 = json.loads(older.RECORDED.read_text(encoding="utf-8"))
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
    for flag, words in RECORDED_BY_4[kind]["ties"][older.VERSIONS.index(version)].items():
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
    for kind in RECORDED_BY_4:
        cells = [(name, *map(_whole, letters)) for name, *letters in _cells(kind, version)]
        assert [cell for cell in cells if same(cell[1]) != same(cell[2])] == [], kind


def _whole(letters: str) -> str:
    """The letters, or that the model is none: a tensor of it has no values."""
    return "m" if "m" in letters else letters


def _parts(letters: str) -> str:
    return "".join(str(letters.index(letter)) if letter.isdigit() else letter for letter in letters)


@pytest.mark.parametrize("version", older.VERSIONS)
def test_which_names_4_knows(version: str) -> None:
    """Under every spelling of the embedding and the head: a name that is unread is random, a corrupt file refused."""
    for kind in RECORDED_BY_4:
        with case(kind):
            hold_the_names_of_4(kind, version)


def hold_the_names_of_4(kind: str, version: str) -> None:
    """Compare the names of one class with those that a release read."""
    family, seen = find({"architectures": [kind]}), RECORDED_BY_4[kind]["names"][older.VERSIONS.index(version)]
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
        lost = unread_by_4(family, stored, version)
        found = [locate(family, name, stored) for name in pair]
        expected = "".join("r" if name in lost else str(place) for place, name in enumerate(found, 1))
        refused = corrupt(family, stored, version) is not None
        assert ("e" if refused else expected) == letters.replace("m", "r"), spelled


def test_the_record_of_4_is_of_the_table() -> None:
    """Every class that transformers 4 may have is in the record."""
    assert list(RECORDED_BY_4) == older.classes() and len(RECORDED_BY_4) > 250
