"""`load`: for each release, the stored tensor whose values a parameter gets, and what becomes of the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.checks.fixtures.model import BART, HEAD, LLAMA, flagged, matrix, save, vector
from tieconv import api
from tieconv.checkpoint.inspection import Inspection
from tieconv.loaders.load import TRANSFORMERS_4, TRANSFORMERS_5, load, releases
from tieconv.loaders.loaded import Absence, Cause

EMBEDDING, ENCODER = "model.embed_tokens.weight", "model.encoder.embed_tokens.weight"
GPT2 = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"}


def inspected(folder: Path, config: dict[str, object], *names: str) -> Inspection:
    """A model of random tables, each with values of its own."""
    return api.inspect(save(folder / "m", config, {name: matrix(seed=seed) for seed, name in enumerate(names)}))


def test_a_tied_head_gets_the_embedding(tmp_path: Path) -> None:
    """One parameter in both releases, and nothing is thrown away."""
    model = inspected(tmp_path, flagged(LLAMA, True), EMBEDDING)
    for release in releases(model):
        loaded = load(model, release)
        assert loaded.source(HEAD) == loaded.holder(HEAD) == EMBEDDING
        assert loaded.one(HEAD, EMBEDDING) and loaded.discarded == () and loaded.refusals == ()


def test_a_head_that_differs_from_the_embedding(tmp_path: Path) -> None:
    """transformers 4 throws it away, 5 keeps it."""
    model = inspected(tmp_path, flagged(LLAMA, True), EMBEDDING, HEAD)
    older, newer = load(model, TRANSFORMERS_4), load(model, TRANSFORMERS_5)
    assert (older.source(HEAD), older.discarded) == (EMBEDDING, (HEAD,))
    assert (newer.source(HEAD), newer.discarded) == (HEAD, ()) and not newer.one(HEAD, EMBEDDING)


@pytest.mark.parametrize(("flag", "older"), [(True, Absence.UNSET), (False, Absence.RANDOM)])
def test_what_is_not_stored(flag: bool, older: Absence, tmp_path: Path) -> None:
    """The encoder's table alone: tied, transformers 4 moves nothing into the others, and 5 gives them that table."""
    model = inspected(tmp_path, flagged(BART, flag), ENCODER)
    assert load(model, TRANSFORMERS_4).parameters[HEAD].absence is older
    assert load(model, TRANSFORMERS_5).source(HEAD) == (ENCODER if flag else None)


def test_a_name_that_a_release_does_not_know(tmp_path: Path) -> None:
    """A table without the prefix beside names with it: transformers 4 does not read it, 5 does."""
    model = inspected(tmp_path, flagged(GPT2, False), "wte.weight", "transformer.wpe.weight", "lm_head.weight")
    older, newer = load(model, TRANSFORMERS_4), load(model, TRANSFORMERS_5)
    assert older.unread == {"wte.weight"} and older.discarded == ("wte.weight",)
    assert older.parameters[older.names["transformer.wte.weight"]].absence is Absence.RANDOM
    assert newer.unread == frozenset() and newer.source("wte.weight") == "wte.weight"


def test_a_file_that_a_release_refuses(tmp_path: Path) -> None:
    """A head beside names without the prefix: the sentence names it."""
    model = inspected(tmp_path, flagged(GPT2, False), "wte.weight", "wpe.weight", "lm_head.weight")
    refusal = load(model, TRANSFORMERS_4).refused(Cause.NAMES)
    assert refusal is not None and refusal.tensors == ("lm_head.weight",) and "corrupted" in refusal.sentence
    assert load(model, TRANSFORMERS_5).refusals == ()


def test_the_factor_of_the_forward_pass(tmp_path: Path) -> None:
    """T5 scales the logits by d_model**-0.5 while the flag is true, and that is the head's factor."""
    config = {"architectures": ["T5ForConditionalGeneration"], "model_type": "t5", "d_model": 16, "vocab_size": 8}
    for flag, factor in ((True, 0.25), (False, 1.0)):
        model = inspected(tmp_path / str(flag), flagged(config, flag), "shared.weight")
        assert load(model, TRANSFORMERS_5).parameters[HEAD].factor == factor


def test_a_bias_that_is_not_stored(tmp_path: Path) -> None:
    """It starts at zero, but for classes that give it no values at all, and then in the releases that do."""
    for name, older, newer in (
        ("BertForMaskedLM", Absence.ZERO, Absence.ZERO),
        ("LongformerForMaskedLM", Absence.ZERO, Absence.UNSET),
        ("ErnieForMaskedLM", Absence.UNSET, Absence.ZERO),
    ):
        model = inspected(tmp_path / name, {"architectures": [name], "model_type": name[:-11].lower()}, "x.weight")
        bias = model.family.output_biases[0]
        found = [load(model, release).parameters[bias].absence for release in (TRANSFORMERS_4, TRANSFORMERS_5)]
        assert found == [older, newer], name


def test_the_bias_that_transformers_4_computes_with(tmp_path: Path) -> None:
    """RoBERTa's outer bias is set to the inner one after loading."""
    config = {"architectures": ["RobertaForMaskedLM"], "model_type": "roberta", "tie_word_embeddings": False}
    tensors = {"lm_head.bias": vector(seed=1), "lm_head.decoder.bias": vector(seed=2), "roberta.norm.weight": vector()}
    loaded = load(api.inspect(save(tmp_path / "m", config, tensors)), TRANSFORMERS_4)
    assert loaded.source("lm_head.bias") == loaded.source("lm_head.decoder.bias") == "lm_head.decoder.bias"
