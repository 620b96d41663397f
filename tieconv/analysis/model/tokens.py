"""Find the rows with a token: ids in the tokenizer's files, and ids that transformers may assign on loading."""

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
    """The ids with a token in the files, with their text. ``file`` holds the vocabulary.

    ``spans`` are ids that transformers may assign on loading. ``undecided`` says why a text may also become other ids;
    it is empty if that is impossible.
    """

    file: str
    text: Mapping[int, str]
    spans: tuple[range, ...] = ()
    undecided: str = ""

    def used(self, rows: int) -> Array:
        """Return which of the first ``rows`` rows have a token in the files: (rows,) of bool."""
        marks = np.zeros(rows, bool)
        ids = np.fromiter(self.text, "i8", len(self.text))
        marks[ids[ids < rows]] = True
        return marks

    def possible(self, rows: int) -> Array:
        """Return which of the first ``rows`` rows have a token or may get one on loading: (rows,) of bool."""
        marks = self.used(rows)
        for span in self.spans:
            marks[span.start : min(span.stop, rows)] = True
        return marks


def read_tokens(files: Files, names: Mapping[str, int], config: Mapping[str, object]) -> tuple[Tokens | None, str]:
    """Return the tokens of the model with the other files ``names``; without a vocabulary ``None`` and the reason.

    The reason is empty for a malformed vocabulary, which counts as absent.
    """
    tokenizer = read_files(files, names)
    vocabularies = ((TOKENIZER, tokenizer.model), (VOCABULARY, tokenizer.vocabulary), (WORDS, tokenizer.words))
    for file, vocabulary in vocabularies:
        if vocabulary:
            ids = token_ids(tokenizer, config)
            text = dict.fromkeys(sorted(ids.listed), "") | tokenizer.added | vocabulary
            return Tokens(file, text, ids.spans, ids.undecided), ""
    return None, next(too_large(tokenizer), "")
