"""Half-stored tables of BART and the two names of BERT's head bias, as transformers 4.48.3 and 4.57.6 load them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import tieconv as api
from tests.checks.fixtures.model import BART, BERT, BERT_EMBED, HEAD, Array, bert, flagged, matrix, save, vector
from tieconv.checkpoint.finding import Prediction

SHARED, ENCODER, DECODER = (
    "model.shared.weight",
    *(f"model.{side}.embed_tokens.weight" for side in ("encoder", "decoder")),
)
LETTERS = {"S": SHARED, "E": ENCODER, "D": DECODER, "H": HEAD}
TABLES: dict[tuple[bool, str], tuple[str, str]] = {
    (True, "S"): ("tied HS", "tied HS"),
    (True, "E"): ("tied HS", "error SEDH"),
    (True, "D"): ("tied HS", "tied HS"),
    (True, "ED"): ("discarded E", "discarded E"),
    (True, "SE"): ("discarded S", "discarded E"),
    (True, "SH"): ("discarded S", "discarded H"),
    (True, "EH"): ("discarded E", "error SEDH"),
    (True, "DH"): ("discarded D", "discarded H"),
    (True, "SEDH"): ("discarded SED", "discarded EDH"),
    (False, "S"): ("random EDH", "random EDH"),
    (False, "E"): ("random SDH", "random SDH"),
    (False, "D"): ("random SEH", "random SEH"),
    (False, "SE"): ("random DH", "random DH"),
    (False, "SH"): ("unknown ", "random ED"),
    (False, "EH"): ("unknown ", "random SD"),
    (False, "SEDH"): ("untied HS", "untied HS"),
}
"""By the flag and the stored tables: what 4.48 and 4.57 do, and the names that the answer is about."""

ASSIGNED = {"SH": "discarded H", "SEDH": "discarded EDH", "SE": "discarded E", "EH": "unknown ", "ED": "unknown "}
"""What 4.48 does with a true flag if the file holds `final_logits_bias`, the first name of the state dict."""

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


@pytest.mark.parametrize("stored", ASSIGNED)
def test_assigned_tables_in_448(stored: str, tmp_path: Path) -> None:
    """With the first name of its state dict in the dtype of the model, 4.48 assigns tensors and ties later."""
    tensors = {LETTERS[letter]: matrix(seed=number) for number, letter in enumerate(stored)}
    tensors["final_logits_bias"] = vector(8).reshape(1, -1)
    oldest, _ = predicted(tmp_path, flagged(BART, True), tensors)
    names = "".join(letter for letter, name in LETTERS.items() if name in oldest.tensors)
    assert f"{oldest.outcome} {names}" == ASSIGNED[stored]


def test_a_class_that_forbids_assignment_in_448(tmp_path: Path) -> None:
    """GPT-J keeps its rounded head in 4.48, GPT-2 its embedding; in bf16 GPT-2 keeps the head too."""
    names = ("transformer.wte.weight", "lm_head.weight")
    table = torch.from_numpy(matrix()) + 1e-4
    outcomes = {}
    for kind, model_type in (("GPTJForCausalLM", "gptj"), ("GPT2LMHeadModel", "gpt2")):
        for dtype in (torch.float32, torch.bfloat16):
            folder = save(
                tmp_path / f"{kind}{dtype}",
                {"architectures": [kind], "model_type": model_type, "tie_word_embeddings": True},
                {names[0]: matrix()},
            )
            head = table.bfloat16() if dtype is torch.float32 else table.bfloat16() + 1
            save_file(
                {names[0]: table.to(dtype), names[1]: head}, folder / "model.safetensors", metadata={"format": "pt"}
            )
            (found,) = api.inspect(folder, consumers="transformers==4.48").consumers
            outcomes[kind, dtype] = str(found.outcome), found.tensors
    assert outcomes["GPTJForCausalLM", torch.float32] == ("discarded", (names[0],))
    assert outcomes["GPT2LMHeadModel", torch.float32][0] == "tied"
    assert outcomes["GPT2LMHeadModel", torch.bfloat16] == ("discarded", (names[0],))


def test_the_later_file_wins_in_448(tmp_path: Path) -> None:
    """If shards are copied, the table of the later one stays, whichever it is."""
    names = ("transformer.wte.weight", "lm_head.weight")
    for first, last in (names, names[::-1]):
        folder = save(
            tmp_path / first,
            {"architectures": ["GPTJForCausalLM"], "model_type": "gptj", "tie_word_embeddings": True},
            {first: matrix()},
        )
        (folder / "model.safetensors").unlink()
        shards = {"model-00001-of-00002.safetensors": first, "model-00002-of-00002.safetensors": last}
        for number, (file, name) in enumerate(shards.items()):
            save_file({name: torch.from_numpy(matrix(seed=number))}, folder / file, metadata={"format": "pt"})
        index = {"metadata": {"total_size": 1}, "weight_map": {name: file for file, name in shards.items()}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        (found,) = api.inspect(folder, consumers="transformers==4.48").consumers
        assert (str(found.outcome), found.tensors) == ("discarded", (first,))
