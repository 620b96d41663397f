"""Findings about the names of weight files: which names are in order, and what is said of the others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import tieconv as api
from tests.checks.fixtures.model import EMBED, HEAD, LLAMA, flagged, llama, matrix, save, save_shards

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
