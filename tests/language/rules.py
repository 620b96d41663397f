"""The rules: words that are gone, and how long a sentence may be."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from tests.language.texts import Text, sentences

LONGEST = 20
"""Words in a sentence."""

_DATA = tomllib.loads((Path(__file__).parent / "words.toml").read_text())
GONE = {re.compile(pattern, re.IGNORECASE): instead for pattern, instead in _DATA["gone"].items()}
ALLOWED = {entry["text"]: entry["reason"] for entry in _DATA.get("allowed", [])}


def broken(text: Text) -> Iterator[str]:
    """Yield what is wrong with a text."""
    for sentence in sentences(text.words):
        if any(allowed in sentence for allowed in ALLOWED):
            continue
        for pattern, instead in GONE.items():
            match = pattern.search(re.sub(r"`[^`]*`", "`x`", sentence))
            if match:
                yield f'"{match[0]}": {instead}'
        length = sum(bool(re.search(r"\w", word)) for word in sentence.split())
        if length > LONGEST:
            yield f"{length} words in a sentence: {sentence[:70]}…"
