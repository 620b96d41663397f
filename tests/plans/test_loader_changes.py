"""What a plan makes of a model in each release of transformers: what a parameter had before and has not after."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.checks.fixtures.model import (
    BERT,
    EMBED,
    HEAD,
    INNER_BIAS,
    LLAMA,
    OUTER_BIAS,
    bert,
    flagged,
    llama,
    matrix,
    save,
    vector,
)
from tieconv import api

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
    assert note.startswith("lm_head.weight was not stored although the config says untied")


def test_a_head_that_begins_to_count_in_transformers_4(tmp_path: Path) -> None:
    """Luke's flag ties its head in transformers 4 alone."""
    config = {"architectures": ["LukeForMaskedLM"], "model_type": "luke", "tie_word_embeddings": True}
    table = "luke.embeddings.word_embeddings.weight"
    tensors = {table: matrix(), "lm_head.decoder.weight": matrix(seed=1)}
    (note,) = api.plan_set_tie("false", save(tmp_path / "m", config, tensors)).plan.notes
    assert note == (
        "not function-preserving in transformers 4, which gave lm_head.decoder.weight the values of "
        f"{table} and gives it its own values"
    )


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
    assert any(
        "transformers 5, which refuses the result: the dbrx config of transformers 5 refuses" in note for note in notes
    )


def test_a_bias_that_transformers_5_did_not_read(tmp_path: Path) -> None:
    """The outer name alone, untied: transformers 5 starts the inner one at zero until the plan stores it."""
    tensors = bert(head=matrix(seed=1), outer=vector()) | {"bert.x.weight": vector(4)}
    notes = api.plan_untie(save(tmp_path / "m", flagged(BERT, False), tensors)).plan.notes
    (note,) = notes
    start = f"not function-preserving in transformers 5, which gave {INNER_BIAS} zeros and gives it "
    assert note == f"{start}the values of {OUTER_BIAS}"


@pytest.mark.parametrize(
    ("config", "names", "told"),
    [
        (BERT, (OUTER_BIAS, INNER_BIAS), "which transformers 4 read until now"),
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
    assert plan.notes[0] == f"the values of {names[0]} are lost, {told}"


def test_transformers_4_is_told_of_where_it_has_the_class(tmp_path: Path) -> None:
    """What is stored apart is discarded by transformers 4, and of a class that it does not have nothing is said."""
    for config, ends in ((LLAMA, "5 reads it; transformers 4 discards it"), (NEWER, "transformers 5 reads it")):
        tensors = {**llama(), HEAD: matrix(seed=3)}
        model = save(tmp_path / str(config["model_type"]), flagged(config, True), tensors)
        (note,) = api.plan_untie(model).plan.notes
        assert note.endswith(ends)


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
