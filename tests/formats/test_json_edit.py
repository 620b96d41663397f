"""Edits of JSON texts, and large objects read in batches: not one other character, and the same refusals."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from tests.patience import examples, prompt
from tieconv.errors import UnreadableError
from tieconv.formats import json_text as json_members
from tieconv.formats.directory import read_index
from tieconv.formats.json_text import BEHIND_OBJECTS, BEHIND_STRINGS, Items, Members, remove_keys, set_value, set_values
from tieconv.formats.strict_json import loads


def remove_key(text: str, path: tuple[str, ...]) -> str:
    """Remove one key."""
    return remove_keys(text, path[:-1], (path[-1],))


space = st.text(" \t\n\r", max_size=3)
characters = st.characters(exclude_categories=["Cs"])
keys = st.sampled_from(
    ["a", "b", "tie_word_embeddings", "é", "\U0001f600", 'q"', "\\", "{", "", "a,b", "\n"]
) | st.text(characters, max_size=4)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(10**18), 10**18)
    | st.floats(allow_nan=False)
    | st.text(characters, max_size=6)
)
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


LIMIT = 1_000_000
any_keys = st.text(st.sampled_from('ab{}[]",: \\é😀'), max_size=6)
plain = st.none() | st.booleans() | st.integers(-(10**18), 10**18) | st.floats(allow_nan=False, allow_infinity=False)
any_values = st.recursive(
    plain | any_keys,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(any_keys, inner, max_size=3),
    max_leaves=8,
)
any_objects = st.dictionaries(any_keys, any_values, max_size=8)
indents = st.sampled_from([None, 1, "\t"])


@pytest.fixture(autouse=True)
def _small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_members, "WINDOW", 48)


def in_batches(text: bytes) -> dict[str, object]:
    """All members; `UnreadableError` for a key that two batches hold."""
    members_read: dict[str, object] = {}
    members = Members(lambda size, at: text[at : at + size], 0, len(text), "f", BEHIND_OBJECTS)
    for batch in members.batches():
        if batch.keys() & members_read.keys():
            raise UnreadableError("twice", "", "json.refused")
        members_read |= batch
    members.finish()
    return members_read


def items_in_batches(text: bytes) -> dict[str, object]:
    members = Items(lambda size, at: text[at : at + size], 0, len(text), "f", BEHIND_STRINGS)
    items = [item for batch in members.batches() for item in batch[""]]  # type: ignore[attr-defined]
    members.finish()
    return {"": items}


def list_at_once(text: bytes) -> dict[str, object]:
    """One list: text behind it would be a member of the object around it."""
    json.loads(text)
    return loads(b'{"":%b}' % text, "f", limit=LIMIT)


def at_once(text: bytes) -> dict[str, object]:
    return loads(text, "f", limit=LIMIT)


@given(any_objects, indents, st.booleans())
@settings(max_examples=examples(300), deadline=None)
def test_reads_the_same(value: dict[str, object], indent: int | str | None, escaped: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=escaped).encode()
    assert in_batches(text) == at_once(text) == value


@given(any_objects, indents, st.data())
@settings(max_examples=examples(300), deadline=None)
def test_refuses_the_same(value: dict[str, object], indent: int | str | None, data: st.DataObject) -> None:
    """One byte changed, put in or taken out: both read the same, or both refuse."""
    text = bytearray(json.dumps(value, indent=indent, ensure_ascii=False).encode())
    offset = data.draw(st.integers(1, len(text)))
    new = data.draw(st.binary(max_size=1) | st.sampled_from([b'"', b",", b"}", b"{", b"\\", b"]", b":", b",}", b"NaN"]))
    text[offset : offset + data.draw(st.integers(0, 1))] = new
    assert outcome(in_batches, bytes(text)) == outcome(at_once, bytes(text))


items = (
    st.lists(any_values, max_size=8)
    | st.lists(any_keys, max_size=20)
    | st.lists(st.lists(any_keys, max_size=2), max_size=20)
)


@given(items, indents, st.booleans())
@example(["a" * 50, 'b","c', "", "d" * 60], None, False)
@settings(max_examples=examples(300), deadline=None)
def test_reads_the_same_items(value: list[object], indent: int | str | None, escaped: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=escaped).encode()
    assert items_in_batches(text) == list_at_once(text) == {"": value}


@given(items, indents, st.data())
@settings(max_examples=examples(300), deadline=None)
def test_refuses_the_same_items(value: list[object], indent: int | str | None, data: st.DataObject) -> None:
    text = bytearray(json.dumps(value, indent=indent, ensure_ascii=False).encode())
    offset = data.draw(st.integers(1, len(text)))
    new = data.draw(st.binary(max_size=1) | st.sampled_from([b'"', b",", b"}", b"{", b"\\", b"]", b":", b",]", b"["]))
    text[offset : offset + data.draw(st.integers(0, 1))] = new
    assert outcome(items_in_batches, bytes(text)) == outcome(list_at_once, bytes(text))


@pytest.mark.parametrize("space", [b"\x0b", b"\x0c"], ids=["vertical tab", "form feed"])
def test_spaces_are_those_of_json(space: bytes) -> None:
    """Python's regular expressions take more bytes for a space than JSON does."""
    for text in (b'["","",""%b,""]', b'["","","",%b""]'):
        assert outcome(items_in_batches, text % space) == outcome(list_at_once, text % space) == "refused"


def test_a_member_behind_a_list_is_no_item() -> None:
    with pytest.raises(UnreadableError):
        items_in_batches(b'["a"],"b":["c","' + b"x" * 60 + b'"]')


def outcome(read: object, text: bytes) -> object:
    try:
        return read(text)  # type: ignore[operator]
    except (UnreadableError, ValueError):
        return "refused"


@pytest.mark.parametrize(
    "text",
    [
        '{"a":1,"b":"' + "x" * 200 + '","a":2}', '{"a":1,}', '{"a":"' + "x" * 60 + '",}', "{,}", '{"a":1 "b":2}',
        '{"a":' + "[" * 200 + "]" * 200 + "}", '{"a":' + "1" * 6000 + "}", '{"a":1}{}', '{"a":1', '{"a":"\\ud800"}',
        '{"a":{"b":1,"b":2}}', "{" + '"k":[1],' * 30 + '"z":Infinity}',
    ],
)  # fmt: skip
def test_refusals(text: str) -> None:
    for read in (at_once, in_batches):
        with pytest.raises(UnreadableError):
            read(text.encode())


def test_a_member_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_members, "LARGEST_MEMBER", 1000)
    assert in_batches(b'{"a":"' + b"x" * 900 + b'","b":1}')
    with pytest.raises(UnreadableError) as caught:
        in_batches(b'{"a":"' + b"x" * 1100 + b'","b":1}')
    assert caught.value.code == "json.too-large"


@given(
    st.dictionaries(any_keys, st.sampled_from(["a.safetensors", 'b"},{', ","]), min_size=1, max_size=12),
    st.dictionaries(st.sampled_from(["metadata", "z", "a"]), any_values, max_size=3),
    st.booleans(),
    indents,
)
@example({'"weight_map":{': ","}, {"a": '"weight_map": {'}, True, None)
@settings(max_examples=examples(200), deadline=None)
def test_an_index(weights: dict[str, str], rest: dict[str, object], first: bool, indent: int | str | None) -> None:
    """The map is read in batches wherever it is; an index of which that cannot be told is refused."""
    value = {"weight_map": weights, **rest} if first else {**rest, "weight_map": weights}
    text = json.dumps(value, indent=indent).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tieconv.formats.directory.WINDOW", 48)
        try:
            assert read_index(text, "i") == (value, weights)
        except UnreadableError:
            assert b'weight_map\\"' in text or "weight_map" in str(rest)


def test_the_separators_are_only_likely() -> None:
    """Names that hold them cost a second look, and nothing else."""
    entries = {f'{i}"x}},"{i}': {"a": ["},", '"', i]} for i in range(50)}
    assert in_batches(json.dumps(entries).encode()) == entries
    assert BEHIND_STRINGS.search(b'"a" , "b"') and not BEHIND_STRINGS.search(b'1,"b"')
