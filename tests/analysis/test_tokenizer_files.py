"""The tokens of a tokenizer's files, read in batches: the same as of the files parsed whole."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from tests.patience import examples
from tieconv.formats import json_text as json_members
from tieconv.inspection import token_ids as allowance, token_ids as large_json
from tieconv.inspection.token_ids import TokenizerFiles, read_files, token_ids
from tieconv.sources.local import open_files

words = st.text(st.sampled_from('ab"{}[]:,\\é😀'), max_size=5) | st.sampled_from(["vocab", "merges", "added_tokens"])
maps = st.dictionaries(words, st.integers(0, 40), max_size=20)
unigrams = st.lists(st.tuples(words, st.floats(-9, 9)), max_size=20)
merges = st.lists(words, max_size=20) | st.lists(st.tuples(words, words), max_size=20)
added = st.lists(st.fixed_dictionaries({"id": st.integers(0, 60), "content": words, "special": st.booleans()}))
templates = st.dictionaries(words, st.integers(0, 99) | words, max_size=3)


@pytest.fixture(autouse=True)
def _small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, value in (
        (json_members, "WINDOW", 64), (large_json, "WINDOW", 64), (large_json, "_KEY", 24), (large_json, "_BLOCK", 80),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, value)


def read(folder: Path, **texts: object) -> TokenizerFiles:
    """The files of ``texts``, by their names without an ending."""
    for file in folder.iterdir():
        file.unlink()
    for name, value in texts.items():
        text = value if isinstance(value, str) else json.dumps(value)
        (folder / f"{name}.json").write_text(text, encoding="utf-8")
    with open_files(folder) as files:
        return read_files(files, {file.name: file.stat().st_size for file in folder.iterdir()})


@given(maps | unigrams, merges, added, templates, st.booleans(), st.sampled_from([None, 1]), st.booleans())
@settings(max_examples=examples(300), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_reads_the_same(
    tmp_path: Path, vocab: object, merged: object, more: list[dict[str, object]], template: object, first: bool,
    indent: int | None, escaped: bool,
) -> None:  # fmt: skip
    """Whatever stands first, however it is indented, and whatever the tokens are called."""
    parts = [("merges", merged), ("vocab", vocab)] if first else [("vocab", vocab), ("merges", merged)]
    members = [("added_tokens", more), ("post_processor", {"template": template}), ("model", dict(parts))]
    document = dict(reversed(members) if first else members)
    found = read(tmp_path, tokenizer=json.dumps(document, indent=indent, ensure_ascii=escaped))
    if set(template) & {"vocab", "merges", "added_tokens"} and found.broken:  # type: ignore[call-overload]
        return
    pairs = vocab.items() if isinstance(vocab, dict) else ((text, i) for i, (text, _) in enumerate(vocab))  # type: ignore[arg-type, var-annotated]
    assert found.broken == found.too_large == []
    assert found.model == {number: text for text, number in pairs}
    assert found.added == {entry["id"]: entry["content"] for entry in more}
    ids = {number for number in template.values() if isinstance(number, int)}  # type: ignore[attr-defined]
    assert token_ids(found, {}).listed == ids | set(found.model) | set(found.added)


@given(st.lists(maps, min_size=1, max_size=1), st.dictionaries(st.integers(0, 99), words, max_size=20))
@settings(max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_reads_the_same_beside(tmp_path: Path, vocabularies: list[dict[str, int]], decoder: dict[int, str]) -> None:
    entries = {str(number): {"content": text, "lstrip": False} for number, text in decoder.items()}
    settings_ = {"pad_token": "x", "added_tokens_decoder": entries, "eos_token": "y"}
    found = read(tmp_path, vocab=vocabularies[0], added_tokens={"<s>": 100}, tokenizer_config=settings_)
    assert found.vocabulary == {number: text for text, number in vocabularies[0].items()}
    assert found.added == {100: "<s>"} | decoder
    assert found.document("tokenizer_config.json")["eos_token"] == "y"


VOCABULARY = '"vocab":{"a":0}'


@pytest.mark.parametrize(
    "text",
    [
        f'{{"model":{{{VOCABULARY},{VOCABULARY}}}}}', f'{{"model":{{{VOCABULARY},"v\\u006fcab":{{"b":1}}}}}}',
        f'{{"model":{{{VOCABULARY}}},"model":{{"vocab":{{"b":1}}}}}}', f'{{"x":{{{VOCABULARY}}}}}',
        f'{{"x":{{{VOCABULARY}}},"model":{{"v\\u006fcab":{{"b":1}}}}}}', '{"post_processor":{"merges":[7]}}',
        '{"model":{"vocab":{"a":0}}', '{"model":{"vocab":{"a":0},}}', '{"model":{"vocab":["a"]}}',
        '{"model":{"vocab":[["a",1]],"b":2]}}',
    ],
)  # fmt: skip
def test_ambiguous_vocabularies_are_not_read(tmp_path: Path, text: str) -> None:
    """What two readers would read differently, or what stands in another value, counts as broken."""
    found = read(tmp_path, tokenizer=text)
    assert found.broken == ["tokenizer.json"] and found.model == {}


def test_white_space_of_any_length_is_read(tmp_path: Path) -> None:
    space = " " * 500
    found = read(tmp_path, tokenizer=f'{{"model"{space}:{space}{{"vocab"{space}:{space}{{"a":0,"b":1}}}}}}')
    assert found.model == {0: "a", 1: "b"}


@pytest.mark.parametrize(
    ("limit", "value"), [("MAX_TOKENS", 3), ("MAX_TEXT", 150), ("MAX_SETTINGS", 60), ("MAX_VALUES", 1000)]
)
def test_files_share_one_allowance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: int) -> None:
    """Each file is small enough alone; the second one is not read any more."""
    monkeypatch.setattr(allowance, limit, value)
    tokenizer, vocabulary = {"model": {"vocab": {"a": 0, "b": 1}}}, {"a": 0, "b": 1}
    extra = {"eos_token": "x" * 20, "a": {}, "b": {}}
    assert read(tmp_path, tokenizer=tokenizer).too_large == []
    assert read(tmp_path, vocab=vocabulary).too_large == []
    assert read(tmp_path, tokenizer_config=extra).too_large == []
    assert read(tmp_path, tokenizer=tokenizer, vocab=vocabulary, tokenizer_config=extra).too_large != []


def test_merges_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allowance, "MAX_MERGES", 5)
    for count, large in ((5, []), (6, ["tokenizer.json"])):
        assert read(tmp_path, tokenizer={"model": {"vocab": {"a": 0}, "merges": ["a b"] * count}}).too_large == large
