"""Large objects read in batches: the same members, and the same refusals, as of the text read at once."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given, settings, strategies as st

from tests.patience import examples
from tests.refusals import failure_of
from tieconv.errors import UnreadableError
from tieconv.formats import json_text as json_members
from tieconv.formats.directory import read_index
from tieconv.formats.json_text import BEHIND_OBJECTS, BEHIND_STRINGS, Items, Members
from tieconv.formats.strict_json import loads

LIMIT = 1_000_000
keys = st.text(st.sampled_from('ab{}[]",: \\é😀'), max_size=6)
plain = st.none() | st.booleans() | st.integers(-(10**18), 10**18) | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    plain | keys, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3), max_leaves=8
)
objects = st.dictionaries(keys, values, max_size=8)
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


@given(objects, indents, st.booleans())
@settings(max_examples=examples(300), deadline=None)
def test_reads_the_same(value: dict[str, object], indent: int | str | None, escaped: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=escaped).encode()
    assert in_batches(text) == at_once(text) == value


@given(objects, indents, st.data())
@settings(max_examples=examples(300), deadline=None)
def test_refuses_the_same(value: dict[str, object], indent: int | str | None, data: st.DataObject) -> None:
    """One byte changed, put in or taken out: both read the same, or both refuse."""
    text = damaged(value, indent, data)
    assert outcome(in_batches, text) == outcome(at_once, text)


def damaged(value: object, indent: int | str | None, data: st.DataObject) -> bytes:
    text = bytearray(json.dumps(value, indent=indent, ensure_ascii=False).encode())
    offset = data.draw(st.integers(1, len(text)))
    pieces = [b'"', b",", b"}", b"{", b"\\", b"]", b":", b",}", b",]", b"[", b"NaN"]
    text[offset : offset + data.draw(st.integers(0, 1))] = data.draw(st.binary(max_size=1) | st.sampled_from(pieces))
    return bytes(text)


items = st.lists(values, max_size=8) | st.lists(keys, max_size=20) | st.lists(st.lists(keys, max_size=2), max_size=20)


@given(items, indents, st.booleans())
@example(["a" * 50, 'b","c', "", "d" * 60], None, False)
@settings(max_examples=examples(300), deadline=None)
def test_reads_the_same_items(value: list[object], indent: int | str | None, escaped: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=escaped).encode()
    assert items_in_batches(text) == list_at_once(text) == {"": value}


@given(items, indents, st.data())
@settings(max_examples=examples(300), deadline=None)
def test_refuses_the_same_items(value: list[object], indent: int | str | None, data: st.DataObject) -> None:
    text = damaged(value, indent, data)
    assert outcome(items_in_batches, text) == outcome(list_at_once, text)


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
    error = failure_of(in_batches, UnreadableError, b'{"a":"' + b"x" * 1100 + b'","b":1}')
    assert error.code == "json.too-large"


@given(
    st.dictionaries(keys, st.sampled_from(["a.safetensors", 'b"},{', ","]), min_size=1, max_size=12),
    st.dictionaries(st.sampled_from(["metadata", "z", "a"]), values, max_size=3),
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
