"""Which rows have a token: the ids of the tokenizer's files, and those that its tokens may get as it is loaded."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tieconv.analysis.certificate.token_ids import token_ids, too_large
from tieconv.analysis.certificate.tokenizer_files import TOKENIZER, VOCABULARY, WORDS, read_files
from tieconv.analysis.model.tables import Array
from tieconv.checkpoint.files.interface import Files
from tieconv.checkpoint.value_type import record


@record
class Tokens:
    """Each id that a file gives a token, with its text; ``file`` is where the vocabulary is from.

    ``spans`` are ids that a token may get as transformers loads the tokenizer. ``undecided`` says why its text may
    become other ids as well; empty where none is possible.
    """

    file: str
    text: Mapping[int, str]
    spans: tuple[range, ...] = ()
    undecided: str = ""

    def used(self, rows: int) -> Array:
        """Which of the first ``rows`` rows have a token in the files: (rows,) of bool."""
        marks = np.zeros(rows, bool)
        ids = np.fromiter(self.text, "i8", len(self.text))
        marks[ids[ids < rows]] = True
        return marks

    def possible(self, rows: int) -> Array:
        """Which of the first ``rows`` rows have a token, or may get one as the tokenizer is loaded: (rows,) of bool."""
        marks = self.used(rows)
        for span in self.spans:
            marks[span.start : min(span.stop, rows)] = True
        return marks


def read_tokens(files: Files, names: Mapping[str, int], config: Mapping[str, object]) -> tuple[Tokens | None, str]:
    """The tokens of the model whose other files are ``names``; without a vocabulary ``None``, and why it was not read.

    The reason is empty where a vocabulary is malformed: that is as good as none here, as nothing else needs it.
    """
    tokenizer = read_files(files, names)
    vocabularies = ((TOKENIZER, tokenizer.model), (VOCABULARY, tokenizer.vocabulary), (WORDS, tokenizer.words))
    for file, vocabulary in vocabularies:
        if vocabulary:
            ids = token_ids(tokenizer, config)
            text = dict.fromkeys(sorted(ids.listed), "") | tokenizer.added | vocabulary
            return Tokens(file, text, ids.spans, ids.undecided), ""
    return None, next(too_large(tokenizer), "")
