"""`watch_ties` and the pytest fixture: planted faults are reported, healthy models are silent."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fixtures import zoo
from tests.lazy import save_file, torch
from tests.live import planted
from tieconv.checkpoint.inspection import Depth, Inspection
from tieconv.errors import UnreadableError
from tieconv.integrations.pytest import assert_ties, tied_model_check  # noqa: F401
from tieconv.integrations.torch import BrokenTieError, BrokenTieWarning, Watch, watch_ties
from tieconv.opened import inspected

HEALTHY = (
    "LlamaForCausalLM", "GPT2LMHeadModel", "T5ForConditionalGeneration", "BartForConditionalGeneration",
    "BertForMaskedLM", "MarianMTModel", "Gemma3ForConditionalGeneration", "Qwen2VLForConditionalGeneration",
)  # fmt: skip


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_models_are_silent(name: str, tied: bool, tmp_path: Path) -> None:
    """Through a resize, a step of an optimizer and a save."""
    model = zoo.build(name, tie=tied)
    with watch_ties(model) as watch:
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        if name in ("LlamaForCausalLM", "T5ForConditionalGeneration"):
            model.resize_token_embeddings(128, mean_resizing=False)
        watch.check_ties()
        model.save_pretrained(tmp_path)
        watch.check_saved(tmp_path)


@pytest.mark.parametrize("fault", planted.FAULTS)
def test_faults_within_the_block(fault: Callable[[Any], None]) -> None:
    """The error at the end of the block has the rule, both names and a hint."""
    model = planted.llama()
    with pytest.raises(BrokenTieError) as caught, watch_ties(model):
        fault(model)
    rule = planted.FAULTS[fault]
    assert (caught.value.faults[0].rule, caught.value.code) == (rule, rule or "live.tie")
    assert "lm_head.weight" in caught.value.message and "at the end" in caught.value.message
    assert "model." in caught.value.command_hint
    assert ("Their values are still equal." in str(caught.value)) == (fault is planted.copy_head)


@pytest.mark.parametrize("fault", planted.FAULTS)
def test_faults_before_the_block(fault: Callable[[Any], None]) -> None:
    """What is broken at the start is reported before any training."""
    model = planted.llama()
    fault(model)
    with pytest.raises(BrokenTieError, match="at the start"), watch_ties(model):
        raise AssertionError("the block ran")


@pytest.mark.parametrize(
    "name, member", [("T5ForConditionalGeneration", "encoder"), ("BartForConditionalGeneration", "model.decoder")]
)
def test_one_of_several_tied_names(name: str, member: str) -> None:
    """An encoder-decoder ties three names and more: each counts."""
    model = zoo.build(name, tie=True)
    stack = model.get_submodule(member)
    with pytest.raises(BrokenTieError, match=r"embed_tokens\.weight"), watch_ties(model):
        stack.embed_tokens.weight = torch.nn.Parameter(stack.embed_tokens.weight.detach() + 1)


def test_to_empty_after_meta() -> None:
    """The tie exists on the meta device and is gone afterwards."""
    config = planted.llama().config
    with torch.device("meta"):
        model = zoo.model_class("LlamaForCausalLM")(config)
    with pytest.raises(BrokenTieError, match="were one parameter"), watch_ties(model):
        model.to_empty(device="cpu")
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter)


def test_a_module_without_config() -> None:
    """The identities at the start are what counts."""
    model = planted.net()
    with pytest.raises(BrokenTieError, match=r"out\.weight"), watch_ties(model):
        model.out.weight = torch.nn.Parameter(model.out.weight.detach().clone())


def test_warnings_are_given_once() -> None:
    """With `warn` the block goes on."""
    model = planted.llama()
    planted.copy_head(model)
    with pytest.warns(BrokenTieWarning) as caught, watch_ties(model, on_fault="warn"):
        pass
    assert len(caught) == 1 and "hint: " in str(caught[0].message)
    with pytest.warns(BrokenTieWarning) as caught:
        Watch(model, "warn").check()
    assert caught[0].filename == __file__


def test_an_exception_of_the_block_is_not_hidden() -> None:
    """A fault is not reported over another error."""
    model = planted.llama()
    with pytest.raises(KeyError), watch_ties(model):
        planted.copy_head(model)
        raise KeyError("mine")


def test_an_unknown_way_to_report() -> None:
    """A typo is an error at once."""
    with pytest.raises(ValueError, match="on_fault is 'panic'"):
        Watch(planted.llama(), "panic")  # type: ignore[arg-type]


def _save(model: Any, folder: Path, *dropped: str) -> None:
    """A saver that writes its own choice of names."""
    model.config.save_pretrained(folder)
    state = {name: value.clone() for name, value in model.state_dict().items() if name not in dropped}
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})


def test_the_save_drops_a_separate_head(tmp_path: Path) -> None:
    """NeMo Automodel #2511: the head is left out although it is not tied."""
    model = planted.llama(tied=False)
    _save(model, tmp_path, "lm_head.weight")
    with pytest.raises(BrokenTieError, match=r"TIE003: .* lacks lm_head\.weight, which is a separate parameter"):
        Watch(model).check_saved(tmp_path)


def test_the_save_drops_a_separate_head_of_a_tied_config(tmp_path: Path) -> None:
    """Also where the flag says tied: the file looks healthy, and the trained head is lost."""
    model = planted.llama()
    planted.change_head(model)
    _save(model, tmp_path, "lm_head.weight")
    with pytest.raises(BrokenTieError, match=r"lacks lm_head\.weight"):
        Watch(model).check_saved(tmp_path)


def test_the_save_has_the_tied_matrix_twice(tmp_path: Path) -> None:
    """A gathered state dict has both names."""
    model = planted.llama()
    _save(model, tmp_path)
    with pytest.raises(BrokenTieError, match="TIE002"):
        Watch(model).check_saved(tmp_path)


def headers(model: Any, depth: Depth) -> Inspection:
    """What the headers tell; nothing reads more."""
    assert depth is Depth.HEADER
    return inspected(model, depth, None, None)


def test_healthy_saves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tied without the head, and untied with it. Headers suffice."""
    monkeypatch.setattr("tieconv.live.watched_ties.inspected", lambda opened, depth, *_: headers(opened, depth))
    for tied, dropped in ((True, ("lm_head.weight",)), (False, ())):
        folder = tmp_path / str(tied)
        model = planted.llama(tied=tied)
        _save(model, folder, *dropped)
        Watch(model).check_saved(folder)


def test_a_directory_without_a_model(tmp_path: Path) -> None:
    """It cannot be checked, and that is an error."""
    with pytest.raises(UnreadableError):
        Watch(planted.llama()).check_saved(tmp_path)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("options", [{"target_modules": ["q_proj"]}, {"target_modules": "all-linear"}])
def test_healthy_adapters(options: Any, tmp_path: Path) -> None:
    """Adapters on other modules, their save and their merge are silent."""
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(planted.llama(), peft.LoraConfig(task_type="CAUSAL_LM", **options))
    with watch_ties(model) as watch:
        model.save_pretrained(tmp_path)
        watch.check_saved(tmp_path)
    base = planted.llama()
    with watch_ties(base):
        peft.get_peft_model(base, peft.LoraConfig(task_type="CAUSAL_LM", **options)).merge_and_unload()


@pytest.mark.filterwarnings("ignore")
def test_an_adapter_on_the_tied_head() -> None:
    """PEF001 before the training; with a whole copy of the head, the merge ends the tie."""
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(planted.llama(), peft.LoraConfig(task_type="CAUSAL_LM", target_modules=["lm_head"]))
    with pytest.raises(BrokenTieError, match="PEF001"), watch_ties(model):
        raise AssertionError("the block ran")
    base = planted.llama()
    options = {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}
    with pytest.raises(BrokenTieError, match="were one parameter"), watch_ties(base):
        peft.get_peft_model(base, peft.LoraConfig(task_type="CAUSAL_LM", **options)).merge_and_unload()


def test_assert_ties() -> None:
    """The same as an assertion."""
    model = planted.llama()
    assert_ties(model)
    planted.copy_head(model)
    with pytest.raises(AssertionError, match="TIE002"):
        assert_ties(model)


def test_the_fixture_remembers(tied_model_check: Callable[[Any], None]) -> None:  # noqa: F811
    """The second call sees that a tie was lost."""
    model = planted.net()
    tied_model_check(model)
    tied_model_check(model)
    model.out.weight = torch.nn.Parameter(model.out.weight.detach().clone())
    with pytest.raises(AssertionError, match="were one parameter"):
        tied_model_check(model)


def test_no_warning_of_a_library() -> None:
    """A watch of a healthy model prints nothing."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with watch_ties(planted.llama()):
            pass
