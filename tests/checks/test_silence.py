"""Models that are as they should be get no error and no warning; which names of weight files are in order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tieconv
import tieconv as api
from fixtures import zoo
from tests.checks.fixtures.model import (
    BART,
    BERT,
    EMBED,
    GEMMA,
    GEMMA3,
    HEAD,
    KIMI,
    LLAMA,
    NESTED_EMBED,
    T5,
    Config,
    Tensors,
    bert,
    flagged,
    gptq,
    llama,
    matrix,
    save,
    save_shards,
    vector,
)
from tests.checks.measure import RECORD, TIES, measure
from tests.lazy import torch
from tieconv.checkpoint.inspection import Depth
from tieconv.checks import is_plain
from tieconv.checks.registry import run_all

QWEN2_VL: Config = {
    **LLAMA,
    "architectures": ["Qwen2VLForConditionalGeneration"],
    "model_type": "qwen2_vl",
    "vision_config": {"depth": 1},
}
SHARED = {"model.shared.weight": matrix(), "final_logits_bias": np.zeros((1, 8), "<f4")}

PLAIN: dict[str, tuple[Config | None, Tensors]] = {
    "a tied Llama": (flagged(LLAMA, True), llama()),
    "an untied Llama": (flagged(LLAMA, False), llama(head=matrix(seed=1))),
    "a Llama without the flag": (LLAMA, llama(head=matrix(seed=1))),
    "a Gemma without the flag": (GEMMA, llama()),
    "an encoder without head": (
        {**BERT, "architectures": ["BertModel"]},
        {"embeddings.word_embeddings.weight": matrix()},
    ),
    "a reward model": (
        {**LLAMA, "architectures": ["LlamaForSequenceClassification"], "tie_word_embeddings": True},
        {**llama(), "score.weight": matrix(1)},
    ),
    "a bare sequence-to-sequence body": ({**BART, "architectures": ["BartModel"]}, {"shared.weight": matrix()}),
    "a BERT of transformers 4": (BERT, bert(outer=vector())),
    "a BERT with both names of its bias": (BERT, bert(outer=vector(), inner=vector())),
    "an untied BERT": (flagged(BERT, False), bert(head=matrix(seed=1), outer=vector(), inner=vector())),
    "a tied BART": (BART, SHARED),
    "a T5": (T5, {"shared.weight": matrix()}),
    "a T5 with a head of its own": (flagged(T5, False), {"shared.weight": matrix(), "lm_head.weight": matrix(seed=1)}),
    "a class whose flag sets the scale of the logits alone": (
        {
            "architectures": ["Pop2PianoForConditionalGeneration"],
            "model_type": "pop2piano",
            "tie_word_embeddings": True,
            "scale_decoder_outputs": True,
            "vocab_size": 8,
        },
        {"shared.weight": matrix(), "lm_head.weight": matrix(seed=1)},
    ),
    "a class that never ties": (flagged(KIMI, True), llama(head=matrix(seed=1))),
    "a vision-language model": (flagged(GEMMA3, True, text_config=True), {NESTED_EMBED: matrix()}),
    "a vision-language model with a flat config": (flagged(QWEN2_VL, True), llama()),
    "a quantised untied head": (flagged(LLAMA, False), {**llama(), **gptq()}),
    "small equal tensors": (
        flagged(LLAMA, True),
        {**llama(), "model.layers.0.norm.weight": vector(4), "model.layers.1.norm.weight": vector(4)},
    ),
}


@pytest.mark.parametrize("case", PLAIN)
@pytest.mark.parametrize("depth", ["header", "candidates", "full"])
def test_plain_model_has_no_finding(case: str, depth: str, tmp_path: Path) -> None:
    """Silence is the promise that makes findings worth reading."""
    config, tensors = PLAIN[case]
    assert api.inspect(save(tmp_path / "model", config, tensors), depth=depth).findings == ()


@pytest.mark.matrix
@pytest.mark.parametrize("title", list(TIES))
def test_every_class_as_saved_is_silent(title: str) -> None:
    """What `save_pretrained` of the installed transformers writes has the errors and warnings of the record alone."""
    pytest.importorskip("transformers")
    measured: Any = measure({title: TIES[title]})
    assert measured["runs"][title]["loud"] == json.loads(RECORD.read_text())["runs"][title]["loud"]


def test_the_published_count_is_of_every_class_and_zero() -> None:
    """docs/check.md quotes this record: all classes that build, no error, no warning.

    The config of Pop2Piano makes the flag true in a file. Built untied in memory, it has tables that transformers 4.57
    ignores. transformers 5 scales the logits of it and of two others also if they are untied, transformers 4 does not.
    """
    scaled = ["LongT5ForConditionalGeneration", "Pop2PianoForConditionalGeneration", "T5ForConditionalGeneration"]
    record = json.loads(RECORD.read_text())
    assert record["classes"] == len(set(zoo.classes()) - set(zoo.UNBUILDABLE))
    for title, run in record["runs"].items():
        assert [*run["loud"]] == scaled * (title == "untied"), title
        assert run["checked"] + len(run["refused"]) == record["classes"]


def test_the_shortcut_for_plain_models_hides_nothing(models: Path, tmp_path: Path) -> None:
    """Where a model is called plain, all rules together find nothing; and some models are called plain."""
    plain = 0
    for folder in models.iterdir():
        for depth in Depth:
            inspection = tieconv.inspect(folder, depth=depth)
            if is_plain(inspection):
                plain += 1
                assert run_all(inspection) == ()
    assert plain >= 9


CODES = ("IDX006", "IDX010", "IDX011")


def rules_of(folder: Path) -> list[str]:
    """The rules that find something; a model that looks plain is told so without running them, and must be."""
    short, full = (api.inspect(folder, consumers=asked).findings for asked in (None, "vllm"))
    codes = [finding.rule for finding in full if finding.rule in CODES]
    assert [finding.rule for finding in short if finding.rule in CODES] == codes
    return codes


def renamed(folder: Path, name: str) -> Path:
    save(folder, flagged(LLAMA, True), llama())
    (folder / "model.safetensors").rename(folder / name)
    return folder


@pytest.mark.parametrize("name", ["model.safetensors", "diffusion_pytorch_model.safetensors"])
def test_names_that_a_loader_looks_for(name: str, tmp_path: Path) -> None:
    """The usual name, and that of another library whose configs are called the same, are in order."""
    assert rules_of(renamed(tmp_path / "model", name)) == []


@pytest.mark.parametrize("name", ["model (1).safetensors", "Model.safetensors", "model.fp16.safetensors"])
def test_names_that_no_loader_looks_for(name: str, tmp_path: Path) -> None:
    """Close is not enough: not even a tied model, with nothing else to say of it, is passed over."""
    assert rules_of(renamed(tmp_path / "model", name)) == ["IDX010"]


def test_a_directory_that_is_no_model(tmp_path: Path) -> None:
    """Without a config nobody loads the directory by its name, and the file may be called as it likes."""
    folder = renamed(tmp_path / "model", "lora.safetensors")
    (folder / "config.json").unlink()
    assert rules_of(folder) == []


def test_a_lone_file_may_have_any_name(tmp_path: Path) -> None:
    """A file is given by its path."""
    assert rules_of(renamed(tmp_path / "model", "weights.safetensors") / "weights.safetensors") == []


@pytest.mark.parametrize("total", [1, 2])
def test_numbered_shards_want_their_index(total: int, tmp_path: Path) -> None:
    """One shard that is alone is no model of one file: the index is missing as well as it is of many."""
    tensors = {EMBED: matrix(), HEAD: matrix(seed=1)}
    held = {f"model-{number:05d}-of-{total:05d}.safetensors": tensors for number in range(1, total + 1)}
    assert rules_of(save_shards(tmp_path / "model", flagged(LLAMA, False), held)) == ["IDX006"]


def test_half_a_model_has_no_remedy(tmp_path: Path) -> None:
    """An index of the first of two shards would be an index of half a model."""
    held = {"model-00001-of-00002.safetensors": {EMBED: matrix(), HEAD: matrix(seed=1)}}
    folder = save_shards(tmp_path / "model", flagged(LLAMA, False), held)
    (finding,) = [finding for finding in api.inspect(folder).findings if finding.rule == "IDX006"]
    assert finding.remedy is None


@pytest.mark.parametrize("metadata", [None, [], "x", 0])
def test_metadata_that_is_no_object(metadata: object, tmp_path: Path) -> None:
    """transformers writes into what it finds there."""
    shard = "model-00001-of-00001.safetensors"
    folder = save_shards(tmp_path / "model", flagged(LLAMA, True), {shard: llama()}, dict.fromkeys(llama(), shard))
    index = folder / "model.safetensors.index.json"
    assert rules_of(folder) == []
    index.write_text(json.dumps(json.loads(index.read_text()) | {"metadata": metadata}))
    assert rules_of(folder) == ["IDX011"]


@pytest.mark.parametrize("name", ["gone.safetensors", "merges.txt", "../model.safetensors", "", [], {}, 0, True])
def test_a_name_in_the_config_that_leads_nowhere(name: object, tmp_path: Path) -> None:
    """Where the config names the file, transformers takes no other, and every loader gets an answer about it."""
    folder = save(tmp_path / "model", flagged(LLAMA, True) | {"transformers_weights": name}, llama())
    (folder / "merges.txt").touch()
    assert rules_of(folder) == ["IDX010"]
    outcomes = [str(prediction.outcome) for prediction in api.inspect(folder, consumers="transformers").consumers]
    assert outcomes == ["tied", "error", "error", "error"]


def test_each_loader_has_its_own_reason(tmp_path: Path) -> None:
    """Refusals that no tensor explains are one finding, with a sentence for those loaders that say the same."""
    folder = renamed(tmp_path / "model", "weights.safetensors")
    inspection = api.inspect(folder, consumers="transformers,mlx-lm,vllm")
    (finding,) = [finding for finding in inspection.findings if finding.rule == "CON003"]
    first, second = finding.message.split("; ")
    assert first.startswith("transformers 4.48/4.57/5.0/5.x: transformers looks")
    assert second.startswith("mlx-lm <0.32/0.32: mlx-lm looks for model*.safetensors")


def test_the_format_that_transformers_takes(tmp_path: Path) -> None:
    """A safetensors file of another name beside `pytorch_model.bin`: the latter is the model, and is said to be."""
    folder = renamed(tmp_path / "model", "adapter_model.safetensors")
    torch.save({EMBED: torch.zeros(8, 4)}, folder / "pytorch_model.bin")
    inspection = api.inspect(folder)
    assert inspection.checkpoint.format == "torch"
    (finding,) = [finding for finding in inspection.findings if finding.rule == "IDX009"]
    assert "as torch and as safetensors: transformers loads torch" in finding.message
