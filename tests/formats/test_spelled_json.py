"""JSON whose numbers keep their spelling."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.patience import examples
from tieconv.errors import UnreadableError
from tieconv.formats.strict_json import read, write

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(st.text(), values, max_size=5), st.booleans())
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
