"""The names that `inspect` predicts are those of the file that `save_pretrained` writes, and so are the findings."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import pytest

from tests.lazy import prune, torch, transformers

safetensors = pytest.importorskip("safetensors")

from huggingface_hub.errors import StrictDataclassClassValidationError  # noqa: E402

import tieconv  # noqa: E402
from fixtures import zoo  # noqa: E402
from tieconv.live.watched_ties import TieWatch  # noqa: E402
from tieconv.reporters.text.inspect_text import render  # noqa: E402

QUICK = ("LlamaForCausalLM", "T5ForConditionalGeneration", "BertForMaskedLM", "MarianMTModel")
SLOW_STEP = 8


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> Any:
    """No progress bars and no log lines of transformers."""
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def stored(directory: Path) -> set[str]:
    """The names in the files of a directory."""
    names: set[str] = set()
    for file in directory.glob("*.safetensors"):
        with safetensors.safe_open(file, "pt") as opened:
            names |= set(opened.keys())
    return names


def cut(model: Any, shift: float) -> Any:
    """The model with an output head that is a parameter of its own; ``None`` if it has none."""
    head = model.get_output_embeddings()
    if head is None or not isinstance(getattr(head, "weight", None), torch.nn.Parameter):
        return None
    head.weight = torch.nn.Parameter(head.weight.detach().clone() + shift)
    return model


def compare(model: Any, out: Path) -> None:
    """Names and findings of a model in memory are those of the saved one."""
    inspection = tieconv.inspect(model)
    live = inspection.live
    assert live is not None
    try:
        model.save_pretrained(out)
    except (RuntimeError, StrictDataclassClassValidationError) as error:
        assert live.refusal, error
        return
    assert not live.refusal
    assert stored(out) == set(live.written)
    saved = {(finding.rule, finding.level, finding.message) for finding in tieconv.inspect(out).findings}
    assert {(finding.rule, finding.level, finding.message) for finding in inspection.findings} == saved


def every_form(name: str, folder: Path) -> int:
    """Compare a class as built tied and untied, and with a separate head of equal and of different values."""
    compared = 0
    for tied in (True, False):
        for index, shift in enumerate((None, 0.0, 1.0)):
            model = zoo.build(name, tie=tied)
            if shift is not None:
                model = cut(model, shift)
            if model is not None:
                compare(model, folder / f"{tied}-{index}")
                compared += 1
    return compared


@pytest.mark.parametrize("name", QUICK)
def test_quick_classes(name: str, tmp_path: Path) -> None:
    """A decoder, two encoder-decoders with three tied names and more, and a class with a head bias."""
    assert every_form(name, tmp_path) == 6


@pytest.mark.slow
@pytest.mark.parametrize("start", range(SLOW_STEP))
def test_every_class(start: int, tmp_path: Path) -> None:
    """An eighth of the classes of the table: 40 and more."""
    names = zoo.measured()[start::SLOW_STEP]
    compared = 0
    for name in names:
        folder = tmp_path / name
        folder.mkdir()
        compared += every_form(name, folder) > 0
        for path in sorted(folder.rglob("*"), reverse=True):
            path.unlink() if path.is_file() else os.rmdir(path)
    assert compared >= 40


def test_shared_names_that_the_class_does_not_list(tmp_path: Path) -> None:
    """`save_pretrained` fails, and the report says so."""
    model = zoo.build("LlamaForCausalLM", tie=False)
    layers = model.model.layers
    layers[0].mlp.up_proj.weight = layers[1].mlp.up_proj.weight
    live = tieconv.inspect(model).live
    assert live is not None and "share memory" in live.refusal
    with pytest.raises(RuntimeError, match="shared tensors"):
        model.save_pretrained(tmp_path)


def test_a_config_that_refuses_its_flag(tmp_path: Path) -> None:
    """DBRX has no tied models: the save fails at the config, and the report quotes the reason."""
    model = zoo.build("DbrxForCausalLM", tie=True)
    live = tieconv.inspect(model).live
    assert live is not None and "tie_word_embeddings is not supported for DBRX models" in live.refusal
    compare(model, tmp_path)


def parametrised(kind: str, *, tie: bool) -> Any:
    """A model whose head (or embedding) `torch.nn.utils` computes from other tensors."""
    model = zoo.build("LlamaForCausalLM", tie=tie)
    head = model.lm_head
    if kind == "weight_norm":
        torch.nn.utils.weight_norm(head)
    elif kind == "prune":
        prune.random_unstructured(head, "weight", 0.3)
    elif kind == "parametrize":
        torch.nn.utils.parametrize.register_parametrization(head, "weight", torch.nn.Identity())
    elif kind == "embedding":
        torch.nn.utils.parametrize.register_parametrization(model.model.embed_tokens, "weight", torch.nn.Identity())
    else:
        getattr(torch.nn.utils.parametrizations, kind.rpartition(".")[2])(head)
    return model


@pytest.mark.filterwarnings("ignore")
def test_parametrised_matrices(tmp_path: Path) -> None:
    """Each is a finding, in memory and in the file, that says what the save and transformers do."""
    kinds = ("parametrize", "weight_norm", "parametrizations.weight_norm", "spectral_norm", "prune", "embedding")
    for kind in kinds:
        for tie in (True, False):
            model = parametrised(kind, tie=tie)
            compare(model, tmp_path / f"{kind}-{tie}")
            live = tieconv.inspect(model)
            (found,) = (finding for finding in live.findings if finding.rule == "HED002")
            assert "HED002" in [fault.rule for fault in TieWatch(model).faults()], (kind, tie)
            assert live.live is not None
            if live.live.refusal:
                assert f"save_pretrained fails: {live.live.refusal}" in found.message, (kind, tie)
                continue
            loaded, info = transformers.AutoModelForCausalLM.from_pretrained(
                tmp_path / f"{kind}-{tie}", output_loading_info=True
            )
            random = found.tensors[0] in info["missing_keys"]
            assert ("random values" in found.message) == random, (kind, tie, found.message)
            tied = loaded.lm_head.weight is loaded.model.embed_tokens.weight
            assert ("ties lm_head.weight" in found.message) == (tied and not random), (kind, tie, found.message)


def test_a_quantiser_leaves_the_names_open() -> None:
    """It writes codes of its own making, so nothing is predicted."""
    model = zoo.build("LlamaForCausalLM", tie=True)
    model.hf_quantizer = object()
    assert tieconv.inspect(model).to_dict()["live"]["save_pretrained"] is None


def test_an_offloaded_model(tmp_path: Path) -> None:
    """On the meta device the objects count, so both names stay, and safetensors refuses their one storage."""
    accelerate = pytest.importorskip("accelerate")
    model = zoo.build("LlamaForCausalLM", tie=True)
    accelerate.cpu_offload(model, execution_device="cpu")
    model.hf_device_map = {"": "cpu"}
    inspection = tieconv.inspect(model)
    assert "share memory" in inspection.live.refusal and "save_pretrained  fails" in render(inspection)
    with pytest.warns(UserWarning, match="offloaded"), pytest.raises(RuntimeError, match="share memory"):
        model.save_pretrained(tmp_path)


def test_two_parts_of_one_storage(tmp_path: Path) -> None:
    """Disjoint parts are both written; parts that overlap are refused."""
    model = zoo.build("LlamaForCausalLM", tie=True)
    layers = model.model.layers
    size = layers[0].input_layernorm.weight.numel()
    flat = torch.ones(3 * size)
    layers[0].input_layernorm.weight = torch.nn.Parameter(flat[:size])
    layers[1].input_layernorm.weight = torch.nn.Parameter(flat[size : 2 * size])
    compare(model, tmp_path / "disjoint")
    layers[1].input_layernorm.weight = torch.nn.Parameter(flat[1 : size + 1])
    compare(model, tmp_path / "overlap")
    assert tieconv.inspect(model).live.refusal
