"""Half-stored tables of BART and the two names of BERT's head bias, as transformers 4.48.3 and 4.57.6 load them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.checks.fixtures.model import BART, BERT, BERT_EMBED, HEAD, Array, bert, flagged, matrix, save, vector
from tieconv import api
from tieconv.checkpoint.prediction import Prediction

SHARED, ENCODER, DECODER = (
    "model.shared.weight",
    *(f"model.{side}.embed_tokens.weight" for side in ("encoder", "decoder")),
)
LETTERS = {"S": SHARED, "E": ENCODER, "D": DECODER, "H": HEAD}
TABLES: dict[tuple[bool, str], tuple[str, str]] = {
    (True, "S"): ("tied HS", "tied HS"),
    (True, "E"): ("tied HS", "error SEDH"),
    (True, "D"): ("tied HS", "tied HS"),
    (True, "ED"): ("discarded D", "discarded E"),
    (True, "SE"): ("discarded E", "discarded E"),
    (True, "SH"): ("discarded H", "discarded H"),
    (True, "EH"): ("discarded H", "error SEDH"),
    (True, "DH"): ("discarded H", "discarded H"),
    (True, "SEDH"): ("discarded EDH", "discarded EDH"),
    (False, "S"): ("random EDH", "random EDH"),
    (False, "E"): ("random SDH", "random SDH"),
    (False, "D"): ("random SEH", "random SEH"),
    (False, "SE"): ("random DH", "random DH"),
    (False, "SH"): ("unknown ", "random ED"),
    (False, "EH"): ("unknown ", "random SD"),
    (False, "SEDH"): ("untied HS", "untied HS"),
}
"""By the flag and the stored tables: what 4.48 and 4.57 do, and the names that the answer is about."""

BIAS: dict[tuple[bool, bool, str], tuple[str, str]] = {
    (True, True, "o"): ("", ""),
    (True, True, "i"): ("i", "error"),
    (True, True, "oi"): ("i", "i"),
    (True, True, "equal"): ("", ""),
    (False, True, "o"): ("", ""),
    (False, True, "i"): ("i", "error"),
    (False, True, "oi"): ("i", "i"),
    (False, False, "o"): ("", ""),
    (False, False, "i"): ("", "error"),
    (False, False, "oi"): ("o", "i"),
}
"""By the flag, whether the embedding is stored, and the stored names: the outer or inner name that is not used.

4.48 takes the inner one where the embedding is missing, and the outer one alone where it is not."""


def predicted(folder: Path, config: dict[str, object], tensors: dict[str, Array]) -> tuple[Prediction, ...]:
    return api.inspect(save(folder / "model", config, tensors), consumers="transformers<5").consumers


@pytest.mark.parametrize(("tied", "stored"), TABLES)
def test_half_stored_tables(tied: bool, stored: str, tmp_path: Path) -> None:
    """Each version's answer, and the tables that it names in their order."""
    tensors = {LETTERS[letter]: matrix(seed=seed) for seed, letter in enumerate(stored)}
    letters = {name: letter for letter, name in LETTERS.items()}
    found = predicted(tmp_path, flagged(BART, tied), tensors)
    assert (
        tuple(f"{one.outcome} {''.join(letters[name] for name in one.tensors)}" for one in found)
        == TABLES[tied, stored]
    )


@pytest.mark.parametrize(("tied", "embedded", "stored"), BIAS)
def test_two_names_of_a_bias(tied: bool, embedded: bool, stored: str, tmp_path: Path) -> None:
    """The name whose values reach no logit, or an error where a tied pair has no values."""
    names = {"o": "outer", "i": "inner"}
    values = {names[letter]: vector(seed=seed) for seed, letter in enumerate("oi") if letter in stored}
    if stored == "equal":
        values = {name: vector() for name in ("outer", "inner")}
    tensors = bert(head=matrix() if tied else matrix(seed=1), **values)
    tensors["bert.embeddings.LayerNorm.weight"] = vector(4)
    if not embedded:
        del tensors[BERT_EMBED]
    letters = {"cls.predictions.bias": "o", "cls.predictions.decoder.bias": "i"}
    found = predicted(tmp_path, flagged(BERT, tied), tensors)
    said = ["error" if str(one.outcome) == "error" else "".join(letters[name] for name in one.dropped) for one in found]
    assert tuple(said) == BIAS[tied, embedded, stored]
