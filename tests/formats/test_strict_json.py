"""The JSON loader: limits, what strict and lenient mean, and numbers that keep their spelling."""

from __future__ import annotations

import gc
import json
import math

import pytest
from hypothesis import given, settings, strategies as st

from tests.patience import examples, prompt
from tests.refusals import failure_of
from tieconv.errors import UnreadableError
from tieconv.formats import strict_json
from tieconv.formats.strict_json import MAX_DEPTH, check_part, loads, read, write

LIMIT = 10_000_000
TOO_LARGE = "9" * 21


def strict(text: str | bytes) -> dict[str, object]:
    return loads(text.encode() if isinstance(text, str) else text, "f.json", limit=LIMIT)


def lenient(text: str) -> tuple[dict[str, object], list[str]]:
    repeated: list[str] = []
    return loads(text.encode(), "f.json", limit=LIMIT, lenient=True, duplicates=repeated), repeated


def refused(text: str | bytes) -> str:
    error = failure_of(strict, UnreadableError, text)
    assert error.message.startswith("f.json ") and error.hint and error.message.isprintable()
    return error.code


unicode = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
finite = st.floats(allow_nan=False, allow_infinity=False)
plain = st.none() | st.booleans() | st.integers(-(10**19), 10**19) | finite | unicode
values = st.recursive(
    plain, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12
)  # fmt: skip


@given(st.dictionaries(unicode, values, max_size=5), st.booleans())
@settings(max_examples=examples(60), deadline=None)
def test_loads_what_json_dumps(value: dict[str, object], escaped: bool) -> None:
    try:
        text = json.dumps(value, ensure_ascii=escaped).encode()
    except UnicodeEncodeError:
        return
    assert loads(text, "f", limit=LIMIT, lenient=True) == value


@given(st.binary(max_size=60) | st.text('{}[]",:\\u0123dDeE+-.nulltrueNaN ', max_size=60).map(str.encode))
@settings(max_examples=examples(500), deadline=None)
def test_never_anything_but_an_object_or_a_refusal(data: bytes) -> None:
    try:
        assert isinstance(strict(data), dict)
    except UnreadableError as error:
        assert error.code.startswith("json.")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ('{"a":1,"a":1}', "json.refused"), ('{"a":1,"\\u0061":1}', "json.refused"),
        ('{"x":[{"a":1,"a":2}]}', "json.refused"),
        ('{"a":NaN}', "json.refused"), ('{"a":-Infinity}', "json.refused"), ('{"a":1e999}', "json.refused"),
        (f'{{"a":{TOO_LARGE}}}', "json.refused"), (f'{{"a":-{TOO_LARGE}}}', "json.refused"),
        ('{"a":"\\udc00"}', "json.refused"),
        ('{"\\ud800x":1}', "json.refused"), (b'{"a":"\xff"}', "json.not-utf8"), (b"\xef\xbb\xbf{}", "json.malformed"),
        ("", "json.malformed"), ("{", "json.malformed"), ("{}x", "json.malformed"), ('{"a":"\t"}', "json.malformed"),
        ("[]", "json.not-an-object"), ("null", "json.not-an-object"), ('"a"', "json.not-an-object"),
        ("1.5", "json.not-an-object"),
    ],
)  # fmt: skip
def test_refusals(text: str | bytes, code: str) -> None:
    assert refused(text) == code


def test_lenient_accepts_what_configs_hold() -> None:
    value, repeated = lenient('{"a":NaN,"b":[-Infinity,1e999],"c":1,"c":2,"d":"\\ud800","n":{"e":0,"e":1}}')
    assert math.isnan(value["a"])  # type: ignore[arg-type]
    assert value["b"] == [-math.inf, math.inf]
    assert value["c"] == 2 and value["n"] == {"e": 1}
    assert sorted(repeated) == ["c", "e"]


def test_size() -> None:
    assert loads(b'{"a":1}', "f", limit=7) == {"a": 1}
    assert failure_of(loads, UnreadableError, b'{"a":1}', "f", limit=6).code == "json.too-large"


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_depth(opening: str, closing: str) -> None:
    """64 levels are read, 65 are not, however many, closed or not."""
    for depth in (MAX_DEPTH - 1, MAX_DEPTH, 1000, 300_000):
        text = '{"x":' + opening * depth + "1" + closing * depth + "}"
        if depth < MAX_DEPTH:
            assert strict(text)
        else:
            assert refused(text) == "json.refused"
        assert refused(text[: len(text) // 2]) in ("json.malformed", "json.refused")


def test_levels_are_counted_not_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list beside 64 open levels is no level more; a part may begin and end anywhere, and take all the budget."""
    assert refused("[[]," + "[" * (MAX_DEPTH - 1)) == "json.malformed"
    check_part(b"]}}" + b"[" * MAX_DEPTH, "part")
    with pytest.raises(UnreadableError, match="nested more than 64 levels deep"):
        check_part(b"]}}" + b"[" * (MAX_DEPTH + 1), "part")
    part = b"[]" * 66 + b'"":,'  # lists, a member and a comma, of 80, 190 and 60 bytes
    monkeypatch.setattr(strict_json, "BUDGET", 66 * 80 + 190 + 60)
    check_part(part, "part")
    with pytest.raises(UnreadableError, match="need too much memory"):
        check_part(part + b",", "part")


def test_brackets_inside_strings_are_no_nesting() -> None:
    text = json.dumps({"a": "[" * 1000, 'b\\"[{': ["]" * 1000, '\\"[' * 500], **{f"k{i}": [] for i in range(100)}})
    assert strict(text) == json.loads(text)


@pytest.mark.parametrize(
    "middle", ['"' + '\\"' * 1_000_000, '"' * 1_000_001, "\\" * 1_000_000, '"' + "\\" * 1_000_001, '"\\u' * 500_000]
)
def test_no_text_is_slow(middle: str) -> None:
    """One pass, whatever the quotes do."""
    with prompt(1):
        assert refused('{"a":[' + "[]," * 100 + middle) in ("json.malformed", "json.refused")


@pytest.mark.parametrize("piece", ["[],", "{},", "1,", '"ab",', '{"a":1},', '"\\"[,",'])
def test_values_are_counted_before_they_are_built(piece: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commas, colons and brackets in strings are no values."""
    monkeypatch.setattr(strict_json, "BUDGET", 100_000)
    assert refused('{"a":[' + piece * 2000 + "[]]}") == "json.too-large"
    assert strict('{"a":[' + piece * 200 + "[]]}")
    assert strict(json.dumps({"a": piece * 2000}))


def test_the_collector_is_left_as_it_was() -> None:
    for enabled in (True, False):
        (gc.enable if enabled else gc.disable)()
        try:
            strict("{}")
            refused("{")
            assert gc.isenabled() is enabled
        finally:
            gc.enable()


def test_messages_show_no_raw_text() -> None:
    assert "\\x7f\\u202e" in failure_of(strict, UnreadableError, '{"\x7f\u202e":1,"\x7f\u202e":2}').message


spelled = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(st.text(), spelled, max_size=5), st.booleans())
@settings(max_examples=examples(200), deadline=None)
def test_written_as_the_standard_writer_does(value: dict[str, object], sort_keys: bool) -> None:
    """What was read is written as `json.dumps` with an indent of two writes it."""
    text = json.dumps(value, indent=2, sort_keys=sort_keys)
    assert write(read(text.encode(), "x", limit=1 << 20), sort_keys=sort_keys) == text


@pytest.mark.parametrize("number", ["1.10", "1E5", "-0", "9" * 5000, "NaN", "-Infinity", "1e999", "0.1e-7"])
def test_numbers_keep_their_spelling(number: str) -> None:
    """No digit is rounded, added or lost."""
    assert write(read(f'{{"a": [{number}]}}'.encode(), "x", limit=1 << 20)) == f'{{\n  "a": [\n    {number}\n  ]\n}}'


@pytest.mark.parametrize("text", [b"", b"[]", b"{", b'{"a": 01}', b"\xff", b'{"a":' + b"[" * 70 + b"]" * 70 + b"}"])
def test_what_no_reader_takes_is_refused(text: bytes) -> None:
    """Only numbers, repeated keys and surrogates are read loosely."""
    with pytest.raises(UnreadableError, match="x cannot be read"):
        read(text, "x", limit=1 << 20)
