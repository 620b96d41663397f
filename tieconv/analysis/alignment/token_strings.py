"""Compare tokens of different vocabularies by the bytes that they encode."""

from __future__ import annotations

import re
from collections.abc import Mapping

_SPACE = "\u2581"  # SentencePiece's mark of a space
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_letters() -> dict[str, int]:
    """Map GPT-2's letters to bytes. Printable Latin-1 letters map to their code, the others from U+0100 on."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + number): byte for number, byte in enumerate(others)}


_LETTERS = _byte_letters()


def token_bytes(text: Mapping[int, str], rows: int) -> list[bytes | None]:
    """Return the bytes of the token of each of the first ``rows`` rows, ``None`` for a row without a token.

    ``text`` are tokens in the spelling of the vocabulary. A byte-level vocabulary (such as GPT-2) writes spaces as Ġ,
    and a SentencePiece one as ▁. Both spellings are decoded. Other strings, such as special tokens, stay unchanged.
    """
    byte_level = sum("Ġ" in token for token in text.values()) > sum(_SPACE in token for token in text.values())
    spell = _byte_level if byte_level else _sentencepiece
    return [spell(text[row]) if row in text else None for row in range(rows)]


def _byte_level(token: str) -> bytes:
    try:
        return bytes(_LETTERS[letter] for letter in token)
    except KeyError:  # a special token uses ordinary characters
        return token.encode("utf-8", "surrogatepass")


def _sentencepiece(token: str) -> bytes:
    byte = _BYTE.fullmatch(token)
    if byte:
        return bytes([int(byte[1], 16)])
    return token.replace(_SPACE, " ").encode("utf-8", "surrogatepass")
