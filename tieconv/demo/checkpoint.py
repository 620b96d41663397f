"""Write a toy as a directory that every loader reads: weights, config, tokenizer, model card."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tieconv.reference.library_messages import quiet
from tieconv.reference.packages import need

CARD = """\
---
license: apache-2.0
library_name: transformers
tags: [toy, weight-tying]
---
`tieconv demo` trained this toy ({kind}) in about a minute.
The training text is generated from made-up words.
tieconv makes the text, the words and the weights itself. Its licence (Apache-2.0) applies to them.
"""


def save(model: Any, words: tuple[str, ...], directory: Path) -> None:
    """Write the model into ``directory``, which must not exist yet."""
    directory.mkdir()
    with quiet(need("transformers", "torch", "the demo")):
        model.save_pretrained(directory)
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer(words), indent=1) + "\n", "utf-8")
    kind = "tied" if model.config.tie_word_embeddings else "untied"
    (directory / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}\n', "utf-8")
    (directory / "README.md").write_text(CARD.format(kind=kind), "utf-8")


def tokenizer(words: tuple[str, ...]) -> dict[str, object]:
    """Return a word-level tokenizer.json. A word's id is its index; an unknown word gets the rarest word's id."""
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": {word: row for row, word in enumerate(words)}, "unk_token": words[-1]},
    }
