"""Tokens of two vocabularies are matched by what they write."""

from __future__ import annotations

from tieconv.analysis.token_tables import token_bytes

BYTE_LEVEL = {0: "Ġthe", 1: "the", 2: "Ċ", 3: "<|endoftext|>", 4: "Ã©", 6: "Ġa"}
SENTENCEPIECE = {0: "<0x0A>", 1: "▁the", 2: "é", 3: "</s>", 4: "the", 5: "▁a"}


def test_spellings_meet() -> None:
    """`Ġthe` and `▁the` write the same, and so do `Ċ` and `<0x0A>`, `Ã©` and `é`."""
    left, right = token_bytes(BYTE_LEVEL, 8), token_bytes(SENTENCEPIECE, 6)
    assert set(left) & set(right) == {b" the", b"the", b"\n", "é".encode(), b" a"}


def test_rows_without_a_token() -> None:
    """A gap and the padding behind the vocabulary have no token, and ids beyond the table no row."""
    found = token_bytes({**BYTE_LEVEL, 99: "beyond"}, 8)
    assert len(found) == 8 and found[5] is None and found[7] is None


def test_byte_level_against_the_real_tokenizer() -> None:
    """Every letter of the byte alphabet comes back as the byte that the tokenizers library writes it for."""
    from tokenizers.pre_tokenizers import ByteLevel

    for letter in ByteLevel.alphabet():
        (found,) = token_bytes({0: f"Ġ{letter}"}, 1)
        assert found is not None and found[:1] == b" " and len(found) == 2
    accents = "naïve Ω 漢字 🙂"
    ((spelled, _),) = ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(accents)
    assert token_bytes({0: spelled}, 1) == [accents.encode()]


def test_hostile_strings() -> None:
    """A lone surrogate is a token like another."""
    assert token_bytes({0: "\ud800"}, 1) == ["\ud800".encode("utf-8", "surrogatepass")]
