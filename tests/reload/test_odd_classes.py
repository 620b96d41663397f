"""Classes whose names or flag mean something else, and checkpoints of a training run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import tieconv
from fixtures import zoo
from tests.checks.fixtures.model import matrix, save as save_model
from tests.lazy import torch
from tests.reload.judge import save
from tieconv.errors import RefusedError


def refusal(function, *arguments: object, **options: object) -> RefusedError:
    with pytest.raises(RefusedError) as caught:
        function(*arguments, **options)
    return caught.value


def config(name: str, kind: str) -> dict[str, object]:
    return {"architectures": [name], "model_type": kind, "tie_word_embeddings": True}


@pytest.mark.parametrize("keep_flag", [True, False])
def test_a_head_of_another_shape_is_not_written(tmp_path: Path, keep_flag: bool) -> None:
    """Kyutai's table has audio codes too: under the head's name transformers 5 stops at the size mismatch."""
    tensors = {"model.embed_tokens.embed_tokens.weight": matrix()}
    kyutai = config("KyutaiSpeechToTextForConditionalGeneration", "kyutai_speech_to_text")
    path = save_model(tmp_path / "m", {**kyutai, "codec_config": {"tie_word_embeddings": True}}, tensors)
    error = refusal(tieconv.plan_untie, path, keep_flag=keep_flag)
    assert error.code == "tie.unflippable"
    assert "--keep-flag" not in error.hint


@pytest.mark.parametrize("function", [tieconv.plan_untie, tieconv.plan_retie])
def test_one_name_is_all_there_is(function, tmp_path: Path) -> None:
    """Perceiver multiplies by its input embedding: nothing is absent."""
    tensors = {"perceiver.input_preprocessor.embeddings.weight": matrix()}
    path = save_model(tmp_path / "m", config("PerceiverForMaskedLM", "perceiver"), tensors)
    assert refusal(function, path).code == "tie.one-name"


def test_a_flag_that_only_scales_is_kept(tmp_path: Path) -> None:
    """Pop2Piano never ties its head, and by the flag multiplies its logits by d_model**-0.5."""
    shared = ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
    tensors = {**dict.fromkeys(shared, matrix()), "lm_head.weight": matrix(seed=1)}
    pop = {**config("Pop2PianoForConditionalGeneration", "pop2piano"), "scale_decoder_outputs": True, "d_model": 64}
    model = save_model(tmp_path / "m", pop, tensors)
    assert refusal(tieconv.plan_set_tie, "false", model).code == "flag.forward"
    assert tieconv.plan_set_tie("auto", model).plan.changes_nothing


@pytest.fixture
def vilt(tmp_path: Path) -> Path:
    """ViLT's config class sets its flag to true, whatever the file says."""
    config = {"architectures": ["ViltForMaskedLM"], "model_type": "vilt", "tie_word_embeddings": True}
    return save_model(tmp_path / "m", config, {"vilt.embeddings.text_embeddings.word_embeddings.weight": matrix()})


def test_a_flag_that_the_class_overrides_unties_nothing(vilt: Path, tmp_path: Path) -> None:
    """`untie` and `set-tie false` would promise a head of its own that no loaded model has; a copy is written."""
    assert refusal(tieconv.plan_untie, vilt).code == "tie.always"
    tieconv.plan_untie(vilt, keep_flag=True).execute(tmp_path / "copy")
    assert refusal(tieconv.plan_set_tie, "false", tmp_path / "copy").code == "tie.always"


def test_a_head_of_its_own_may_be_declared(tmp_path: Path) -> None:
    """Transformers 5 keeps a stored head that differs, so a false flag is true of that model."""
    config = {"architectures": ["ViltForMaskedLM"], "model_type": "vilt", "tie_word_embeddings": True}
    names = ("vilt.embeddings.text_embeddings.word_embeddings.weight", "mlm_score.decoder.weight")
    path = save_model(tmp_path / "m", config, {name: matrix(seed=seed) for seed, name in enumerate(names)})
    tieconv.plan_set_tie("false", path).execute(tmp_path / "out")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["tie_word_embeddings"] is False


@pytest.mark.parametrize("verb", ["retie", "set-tie auto", "set-tie true"])
def test_flags_of_a_talker_stay(verb: str, tmp_path: Path) -> None:
    """Qwen3-Omni's talker reads the same key, and transformers cannot build it with a true one."""
    flags = {"talker_config": {"tie_word_embeddings": False, "text_config": {"tie_word_embeddings": False}}}
    config = {"architectures": ["Qwen3OmniMoeForConditionalGeneration"], "model_type": "qwen3_omni_moe"} | flags
    config["thinker_config"] = {"tie_word_embeddings": True, "text_config": {}}
    tensors = dict.fromkeys(("thinker.model.embed_tokens.weight", "thinker.lm_head.weight"), matrix())
    path = save_model(tmp_path / "m", config, tensors)
    plan = tieconv.plan_retie(path) if verb == "retie" else tieconv.plan_set_tie(verb.split()[1], path)
    plan.execute(tmp_path / "out")
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    assert written["talker_config"] == flags["talker_config"]
    assert written["thinker_config"]["tie_word_embeddings"] is True


NAME, SAVED = "LlamaForCausalLM", "optimizer.pt"


def optimizer(folder: Path) -> Any:
    return torch.optim.AdamW(zoo.model_class(NAME).from_pretrained(folder).parameters())


@pytest.mark.parametrize("tie", [True, False])
def test_what_training_cannot_resume_from_is_said(tie: bool, tmp_path: Path) -> None:
    """Tied and untied models have another number of parameters, and torch refuses the optimizer of the other."""
    model = save(NAME, tmp_path / "model", "single", tie=tie)
    if not tie:
        tieconv.plan_untie(save(NAME, tmp_path / "tied", "single", tie=True)).execute(model, overwrite=True)
    torch.save(optimizer(model).state_dict(), model / SAVED)
    planned = tieconv.plan_untie(model) if tie else tieconv.plan_retie(model)
    planned.execute(tmp_path / "out")
    with pytest.raises(ValueError, match="parameter group"):
        optimizer(tmp_path / "out").load_state_dict(torch.load(tmp_path / "out" / SAVED))
    assert [note for note in planned.plan.notes if SAVED in note and "cannot resume" in note]


def test_a_copy_that_is_dropped_stops_no_training(tmp_path: Path) -> None:
    """Where the model stays tied its parameters do, and nothing is said."""
    tied = save(NAME, tmp_path / "tied", "single", tie=True)
    tieconv.plan_untie(tied, keep_flag=True).execute(tmp_path / "copied")
    torch.save(optimizer(tied).state_dict(), tmp_path / "copied" / SAVED)
    planned = tieconv.plan_retie(tmp_path / "copied")
    planned.execute(tmp_path / "out")
    optimizer(tmp_path / "out").load_state_dict(torch.load(tmp_path / "out" / SAVED))
    assert planned.plan.notes == ()
