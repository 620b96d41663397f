"""Edits of JSON texts: the wanted value, and not one other character."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import assume, given, settings, strategies as st

from tests.patience import examples, prompt
from tieconv.formats.json_text import remove_keys, set_value, set_values


def remove_key(text: str, path: tuple[str, ...]) -> str:
    """Remove one key."""
    return remove_keys(text, path[:-1], (path[-1],))


space = st.text(" \t\n\r", max_size=3)
characters = st.characters(exclude_categories=["Cs"])
keys = st.sampled_from(
    ["a", "b", "tie_word_embeddings", "é", "\U0001f600", 'q"', "\\", "{", "", "a,b", "\n"]
) | st.text(characters, max_size=4)
numbers = st.integers(-(10**18), 10**18) | st.floats(allow_nan=False)
scalars = st.none() | st.booleans() | numbers | st.text(characters, max_size=6)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4), max_leaves=12
)
objects = st.dictionaries(keys, values, max_size=5)


@st.composite
def texts(draw: st.DrawFn) -> str:
    """Some JSON text of an object: any white space, any escapes, any order."""
    return draw(space) + _spelled(draw, draw(objects)) + draw(space)


def _spelled(draw: st.DrawFn, value: Any) -> str:
    if isinstance(value, dict):
        pairs = [
            f"{draw(space)}{_spelled(draw, key)}{draw(space)}:{draw(space)}{_spelled(draw, each)}{draw(space)}"
            for key, each in value.items()
        ]
        return "{" + (",".join(pairs) or draw(space)) + "}"
    if isinstance(value, list):
        parts = [f"{draw(space)}{_spelled(draw, each)}{draw(space)}" for each in value]
        return "[" + (",".join(parts) or draw(space)) + "]"
    if isinstance(value, str):
        return "".join(['"', *(_letter(draw, letter) for letter in value), '"'])
    return json.dumps(value)


def _letter(draw: st.DrawFn, letter: str) -> str:
    plain = json.dumps(letter, ensure_ascii=False)[1:-1]
    escaped = "".join(f"\\u{unit:04x}" for unit in _units(letter))
    return draw(st.sampled_from([plain, escaped]))


def _units(letter: str) -> list[int]:
    raw = letter.encode("utf-16-be")
    return [int.from_bytes(raw[i : i + 2], "big") for i in range(0, len(raw), 2)]


def common(before: str, after: str) -> tuple[int, int]:
    """Characters that two texts share at the start, and at the end beyond that."""
    start = next(
        (i for i, (x, y) in enumerate(zip(before, after, strict=False)) if x != y), min(len(before), len(after))
    )
    left, right = before[start:][::-1], after[start:][::-1]
    end = next((i for i, (x, y) in enumerate(zip(left, right, strict=False)) if x != y), min(len(left), len(right)))
    return start, end


@given(texts(), keys, values)
@settings(max_examples=examples(300), deadline=None)
def test_set(text: str, key: str, value: Any) -> None:
    before = json.loads(text)
    after = set_value(text, (key,), value)
    assert json.loads(after) == {**before, key: value}
    assert list(json.loads(after)) == list(before) or key not in before
    if key in before:
        assert len(text) - sum(common(text, after)) <= len(text), "one span changed"
        assert set_value(after, (key,), before[key]) is not None
    else:
        start, end = common(text, after)
        assert start + end == len(text), "only characters added, in one place"


@given(texts(), keys, values)
@settings(max_examples=examples(300), deadline=None)
def test_what_was_put_in_comes_out(text: str, key: str, value: Any) -> None:
    assume(key not in json.loads(text))
    assert remove_key(set_value(text, (key,), value), (key,)) == text


@given(texts(), st.data())
@settings(max_examples=examples(300), deadline=None)
def test_remove(text: str, data: st.DataObject) -> None:
    before = json.loads(text)
    assume(before)
    key = data.draw(st.sampled_from(sorted(before)))
    after = remove_key(text, (key,))
    assert json.loads(after) == {name: value for name, value in before.items() if name != key}
    start, end = common(text, after)
    assert start + end == len(after), "only characters taken, from one place"


@given(texts(), keys, values, values)
@settings(max_examples=examples(200), deadline=None)
def test_a_value_set_back(text: str, key: str, value: Any, replacement: Any) -> None:
    """The value's own characters are all that an edit replaces."""
    spelled = set_value(text, (key,), value)
    assert set_value(set_value(spelled, (key,), replacement), (key,), value) == spelled


@given(texts(), keys, keys, values)
@settings(max_examples=examples(200), deadline=None)
def test_nested(text: str, outer: str, inner: str, value: Any) -> None:
    whole = set_value(text, (outer,), {})
    after = set_value(whole, (outer, inner), value)
    assert json.loads(after) == {**json.loads(text), outer: {inner: value}}
    assert remove_key(after, (outer, inner)) == whole


@pytest.mark.parametrize("text", ['{"a": 1}', '{"a": []}', '{"a": "b"}', "{}"])
def test_a_path_through_no_object(text: str) -> None:
    for edit in (lambda: set_value(text, ("a", "b"), 1), lambda: remove_key(text, ("a", "b"))):
        with pytest.raises(KeyError):
            edit()


def test_a_key_that_is_not_there() -> None:
    with pytest.raises(KeyError):
        remove_key('{"a": 1}', ("b",))


@pytest.mark.parametrize(
    ("text", "set_", "removed"),
    [
        ('{"k": 1, "a": 2, "k": 3}', '{"k": 1, "a": 2, "k": 9}', '{"a": 2}'),
        ('{"k": 1, "k": 2}', '{"k": 1, "k": 9}', "{}"),
        ('{"a": 0, "k": 1, "k": 2, "b": 3}', '{"a": 0, "k": 1, "k": 9, "b": 3}', '{"a": 0, "b": 3}'),
        ('{"\\u006b": 1, "k": 2}', '{"\\u006b": 1, "k": 9}', "{}"),
    ],
)
def test_repeated_keys(text: str, set_: str, removed: str) -> None:
    """The last one counts for readers: it is the one to set, and all must go."""
    assert set_value(text, ("k",), 9) == set_
    assert remove_key(text, ("k",)) == removed


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('{\n  "a": 1,\n  "c": 2\n}\n', '{\n  "a": 1,\n  "b": true,\n  "c": 2\n}\n'),
        ('{\n  "a": 1,\n  "B": 2\n}\n', '{\n  "a": 1,\n  "B": 2,\n  "b": true\n}\n'),
        ('{\n\t"c": 1\n}', '{\n\t"b": true,\n\t"c": 1\n}'),
        ('{"a":1}', '{"a":1, "b": true}'),
        ("{}", '{"b": true}'),
        (
            '{\r\n    "a": 1.0e0,\r\n    "é": "\\u00e9"\r\n}\r\n',
            '{\r\n    "a": 1.0e0,\r\n    "b": true,\r\n    "é": "\\u00e9"\r\n}\r\n',
        ),
        ('{"x": NaN, "a": 1e999}', '{"x": NaN, "a": 1e999, "b": true}'),
    ],
)
def test_a_new_key_looks_like_its_neighbours(before: str, after: str) -> None:
    assert set_value(before, ("b",), True) == after
    assert remove_key(after, ("b",)) == before


@given(texts(), st.dictionaries(keys, st.one_of(scalars, st.dictionaries(keys, scalars, max_size=3)), max_size=4))
@settings(max_examples=examples(300), deadline=None)
def test_set_several(text: str, wanted: dict[str, Any]) -> None:
    """As one after the other, also inside of objects."""
    before = json.loads(text)
    changes: list[tuple[tuple[str, ...], Any]] = []
    for key, value in wanted.items():
        inner = value if isinstance(value, dict) and isinstance(before.get(key), dict) else None
        changes += [((key,), value)] if inner is None else [((key, each), inner[each]) for each in inner]
    expected = text
    for path, value in sorted(changes, key=lambda change: not holds(before, change[0])):
        expected = set_value(expected, path, value)
    assert set_values(text, changes) == expected


def holds(value: Any, path: tuple[str, ...]) -> bool:
    """Whether every key of the path is there: what is new is added behind what is changed."""
    for key in path:
        if not isinstance(value, dict) or key not in value:
            return False
        value = value[key]
    return True


def test_set_several_below_no_object() -> None:
    with pytest.raises(KeyError):
        set_values('{"a": 1}', [(("a", "b"), 1)])


@given(texts(), st.data())
@settings(max_examples=examples(300), deadline=None)
def test_remove_several(text: str, data: st.DataObject) -> None:
    """As one after the other, in any order."""
    removed = data.draw(st.lists(st.sampled_from(sorted(json.loads(text)) or [""]), unique=True))
    removed = [key for key in removed if key in json.loads(text)]
    expected = text
    for key in removed:
        expected = remove_key(expected, (key,))
    assert remove_keys(text, (), removed) == expected


@pytest.mark.slow
def test_large_texts_are_edited_in_one_pass() -> None:
    """Ten thousand of either would take minutes one by one."""
    count = 10_000
    text = json.dumps({f"k{i}": {"flag": False} for i in range(count)})
    with prompt(2):
        changed = set_values(text, [((f"k{i}", "flag"), True) for i in range(count)])
        assert remove_keys(text, (), [f"k{i}" for i in range(count)]) == "{}"
    assert changed == text.replace("false", "true")
