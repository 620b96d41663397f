"""What a plan makes of a model in each release of transformers: what a parameter had before and has not after."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tieconv as api
from tests.checks.fixtures.model import (
    BERT,
    EMBED,
    HEAD,
    INNER_BIAS,
    LLAMA,
    OUTER_BIAS,
    T5,
    bert,
    flagged,
    llama,
    matrix,
    save,
    vector,
)
from tieconv.checkpoint.finding import REVIEW_FIRST
from tieconv.errors import RefusedError

FSMT = {"architectures": ["FSMTForConditionalGeneration"], "model_type": "fsmt", "tie_word_embeddings": True}
NEWER = {**LLAMA, "architectures": ["AfmoeForCausalLM"], "model_type": "afmoe"}
ROBERTA = {"architectures": ["RobertaForMaskedLM"], "model_type": "roberta"}
DECODER, ENCODER = "model.decoder.embed_tokens.weight", "model.encoder.embed_tokens.weight"
OUTPUT = "model.decoder.output_projection.weight"


def test_a_plan_that_keeps_every_value_says_nothing(tmp_path: Path) -> None:
    """Untying, re-tying and dedup of equal tables are the same function in both releases."""
    tied = save(tmp_path / "tied", flagged(LLAMA, True), llama())
    both = save(tmp_path / "both", flagged(LLAMA, True), {**llama(), HEAD: llama()[EMBED]})
    for planned in (api.plan_untie(tied), api.plan_retie(both), api.plan_dedup(both)):
        assert planned.plan.notes == ()


def test_values_for_what_was_random_are_no_loss(tmp_path: Path) -> None:
    """A head that was not stored had none to lose: the note about it is the only one."""
    model = save(tmp_path / "m", flagged(LLAMA, False), llama())
    (note,) = api.plan_retie(model).plan.notes
    assert note.startswith(
        f"transformers 4 and 5 load {HEAD} with random numbers now and with the values of {EMBED} after"
    )


def test_a_head_that_begins_to_count_in_transformers_4(tmp_path: Path) -> None:
    """Luke's flag ties its head in transformers 4 alone."""
    config = {"architectures": ["LukeForMaskedLM"], "model_type": "luke", "tie_word_embeddings": True}
    table = "luke.embeddings.word_embeddings.weight"
    tensors = {table: matrix(), "lm_head.decoder.weight": matrix(seed=1)}
    (note,) = api.plan_set_tie("false", save(tmp_path / "m", config, tensors)).plan.notes
    now = f"transformers 4 loads lm_head.decoder.weight with the values of {table} now"
    assert note == f"{now} and with its own values afterwards {REVIEW_FIRST}"


def test_dedup_keeps_the_table_that_transformers_4_takes(tmp_path: Path) -> None:
    """FSMT's tied tables are the encoder's there; without it the model has no values."""
    tensors = dict.fromkeys((DECODER, ENCODER, OUTPUT), matrix())
    notes = api.plan_dedup(save(tmp_path / "m", FSMT, tensors)).plan.notes
    assert any(f"kept: {ENCODER}, transformers 4 takes the tied values from {ENCODER} alone" in note for note in notes)


def test_a_result_that_a_release_refuses(tmp_path: Path) -> None:
    """DBRX's config refuses a true flag in transformers 5: the plan that writes it says so."""
    config = {"architectures": ["DbrxForCausalLM"], "model_type": "dbrx", "tie_word_embeddings": False}
    tensors = dict.fromkeys(("transformer.wte.weight", "lm_head.weight"), matrix())
    notes = api.plan_set_tie("true", save(tmp_path / "m", config, tensors), force=True).plan.notes
    sentence = "transformers 5 refuses the result: the dbrx config of transformers 5 refuses"
    assert any(sentence in note for note in notes)


def test_a_bias_that_transformers_5_did_not_read(tmp_path: Path) -> None:
    """The outer name alone, untied: transformers 5 starts the inner one at zero until the plan stores it."""
    tensors = bert(head=matrix(seed=1), outer=vector()) | {"bert.x.weight": vector(4)}
    notes = api.plan_untie(save(tmp_path / "m", flagged(BERT, False), tensors)).plan.notes
    (note,) = notes
    start = f"transformers 5 loads {INNER_BIAS} with zeros now and "
    assert note == f"{start}with the values of {OUTER_BIAS} afterwards {REVIEW_FIRST}"


@pytest.mark.parametrize(
    ("config", "names", "told"),
    [
        (BERT, (OUTER_BIAS, INNER_BIAS), "which transformers 4 reads"),
        (ROBERTA, ("lm_head.bias", "lm_head.decoder.bias"), "which no version of transformers reads"),
    ],
    ids=["bert", "roberta"],
)
def test_who_read_the_bias_that_is_lost(
    config: dict[str, object], names: tuple[str, str], told: str, tmp_path: Path
) -> None:
    """BERT's outer bias is read by transformers 4; RoBERTa's is overwritten by the inner one in both."""
    prefix = str(config["model_type"])
    tensors = {name: vector(seed=seed) for seed, name in enumerate(names)} | {f"{prefix}.x.weight": vector(4)}
    model = save(tmp_path / "m", flagged(config, True), tensors)
    plan = api.plan_bias("unify", model, survivor="decoder").plan
    assert plan.notes[0].startswith(f"bias unify discards the values of {names[0]}, {told}")
    assert (REVIEW_FIRST in plan.notes[0]) is ("no version" not in told)


def test_transformers_4_is_told_of_where_it_has_the_class(tmp_path: Path) -> None:
    """A note says that transformers 4 ignores a differing head, only if transformers 4 has the class."""
    for config, ends in (
        (LLAMA, "transformers 5 uses it. With the new config, transformers 4 uses it too"),
        (NEWER, "transformers 5 uses it"),
    ):
        tensors = {**llama(), HEAD: matrix(seed=3)}
        model = save(tmp_path / str(config["model_type"]), flagged(config, True), tensors)
        (note,) = api.plan_untie(model).plan.notes
        assert note.endswith(ends)
    (note, *_) = api.plan_untie(tmp_path / str(LLAMA["model_type"]), keep_flag=True).plan.notes
    assert note.endswith("transformers 5 uses it. transformers 4.57 ignores it")
    turned = save(tmp_path / "turned", flagged(LLAMA, True), {**llama(), HEAD: llama()[EMBED].T.copy()})
    (note,) = api.plan_set_tie("false", turned).plan.notes
    assert note.endswith("(it is the transpose). It stays as stored, and transformers refuses its shape")
    effect = f"Not loaded: {HEAD} has another shape than the embedding, which transformers refuses."
    assert api.inspect(turned).config.effect == effect


def test_dedup_keeps_what_transformers_4_48_does_not_restore(tmp_path: Path) -> None:
    """LongT5's halves, untied: 4.57 takes them from the shared table, 4.48 starts them with random numbers."""
    config = {"architectures": ["LongT5ForConditionalGeneration"], "model_type": "longt5", "tie_word_embeddings": False}
    halves = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
    tensors = dict.fromkeys(("shared.weight", *halves), matrix()) | {"lm_head.weight": matrix(seed=1)}
    plan = api.plan_dedup(save(tmp_path / "m", config, tensors)).plan
    assert not plan.weights and all(
        any(f"kept: {name}, transformers 4" in note for note in plan.notes) for name in halves
    )


def test_dedup_drops_what_every_release_restores(tmp_path: Path) -> None:
    """T5's halves are given one table whatever the flag says."""
    config = {"architectures": ["T5ForConditionalGeneration"], "model_type": "t5", "tie_word_embeddings": False}
    halves = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
    tensors = dict.fromkeys(("shared.weight", *halves), matrix()) | {"lm_head.weight": matrix(seed=1)}
    plan = api.plan_dedup(save(tmp_path / "m", config, tensors)).plan
    assert [tensor.name for file in plan.weights for tensor in file.tensors] == ["shared.weight", "lm_head.weight"]


@pytest.mark.parametrize(
    ("name", "loader"), [("Nystromformer", "transformers 5"), ("Ernie", "transformers 4")], ids=["in 5", "in 4 alone"]
)
def test_a_bias_that_only_saves_bytes_comes_back_in_every_release(name: str, loader: str, tmp_path: Path) -> None:
    """A class whose absent bias has no values keeps its zero bias, whichever release that is."""
    config = {"architectures": [f"{name}ForMaskedLM"], "model_type": name.lower(), "tie_word_embeddings": True}
    tensors = {f"{name.lower()}.embeddings.word_embeddings.weight": matrix(), OUTER_BIAS: np.zeros(8, "<f4")}
    with pytest.raises(RefusedError, match=f"{loader} loads .* would load it without values afterwards") as caught:
        api.plan_bias("strip", save(tmp_path / "m", config, tensors))
    assert caught.value.code == "meaning.lost"


def test_a_rescaled_head_is_a_refusal(tmp_path: Path) -> None:
    """transformers 5 ties T5's absent head under a false flag and does not scale it: under a true one it does."""
    config = flagged({**T5, "d_model": 4}, False)
    model = save(tmp_path / "m", config, {"shared.weight": matrix(), "encoder.embed_tokens.weight": matrix()})
    with pytest.raises(RefusedError, match=r"now and would load it with the values of shared.weight times 0.5 after"):
        api.plan_retie(model)


def test_a_result_that_transformers_5_refuses_is_refused(tmp_path: Path) -> None:
    """Without --force nobody asked for a config that transformers 5 refuses."""
    config = {"architectures": ["DbrxForCausalLM"], "model_type": "dbrx", "tie_word_embeddings": False}
    tensors = dict.fromkeys(("transformer.wte.weight", "lm_head.weight"), matrix())
    with pytest.raises(RefusedError) as caught:
        api.plan_set_tie("true", save(tmp_path / "m", config, tensors))
    assert caught.value.hint


def test_a_conversion_says_only_what_its_order_changes(tmp_path: Path) -> None:
    """Marian's untied tables are one in transformers 4, which keeps the last: the same format in one file keeps it."""
    config = {"architectures": ["MarianMTModel"], "model_type": "marian", "tie_word_embeddings": False}
    names = ("model.shared.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight")
    tensors = {name: matrix(seed=seed) for seed, name in enumerate(names)} | {HEAD: matrix(seed=5)}
    model = save(tmp_path / "m", {**config, "share_encoder_decoder_embeddings": True}, tensors)
    assert not any(
        "keeps only the one that it reads last" in note for note in api.plan_convert("safetensors", model).plan.notes
    )
    notes = api.plan_convert("torch", model).plan.notes
    assert any("keeps only the one that it reads last" in note and REVIEW_FIRST in note for note in notes)


def test_a_head_that_holds_the_factor_is_dropped(tmp_path: Path) -> None:
    """T5's untied head is the table times d_model**-0.5, which the tied model applies: every value stays."""
    tensors = {"shared.weight": matrix(), HEAD: matrix() * np.float32(0.5)}
    model = save(tmp_path / "m", flagged({**T5, "d_model": 4}, False), tensors)
    planned = api.plan_retie(model)
    assert not any(f"loads {HEAD}" in note or f"load {HEAD}" in note for note in planned.plan.notes)
    assert planned.execute(tmp_path / "out").verified
