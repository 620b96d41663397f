"""Files in Mistral's own format, alone or beside those of transformers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tieconv as api
from tests.checks.fixtures.model import LLAMA, flagged, llama, matrix, save, weights

EMBED, HEAD = "tok_embeddings.weight", "output.weight"


def native(folder: Path, name: str = "consolidated.safetensors", *, tied: bool = False) -> Path:
    """A file of that format and its `params.json`."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(weights({EMBED: matrix(seed=3), **({} if tied else {HEAD: matrix(seed=4)})}))
    (path.parent / "params.json").write_text(json.dumps({"dim": 4, "vocab_size": 8, "tied_embeddings": tied}))
    return folder


@pytest.mark.parametrize(
    "name",
    ["consolidated.safetensors", "consolidated-00001-of-00001.safetensors", "original/consolidated.00.safetensors"],
)
def test_beside_the_files_of_transformers(name: str, tmp_path: Path) -> None:
    """vLLM takes those of Mistral's format, in whatever folder: nothing is claimed but which files it reads."""
    folder = native(save(tmp_path, flagged(LLAMA, True), llama()), name)
    predictions = {entry.name: entry for entry in api.inspect(folder, consumers="transformers>=5.4,vllm").consumers}
    assert predictions["transformers"].outcome == "tied"
    assert predictions["vllm"].outcome == "unknown"
    assert name in predictions["vllm"].detail and "model.safetensors" in predictions["vllm"].detail


@pytest.mark.parametrize(
    "name", ["consolidated.safetensors.bak", "unconsolidated.safetensors.txt", "consolidated.00.pth"]
)
def test_names_that_are_like_it(name: str, tmp_path: Path) -> None:
    """vLLM looks for `consolidated*.safetensors` by base name, and for nothing else."""
    folder = save(tmp_path, flagged(LLAMA, True), llama())
    (folder / name).touch()
    assert {str(entry.outcome) for entry in api.inspect(folder, consumers="vllm").consumers} == {"tied"}


@pytest.mark.parametrize("tied", [False, True])
def test_alone(tied: bool, tmp_path: Path) -> None:
    """What it is, which two names to give, and no word of a missing config, which vLLM does not need there."""
    inspection = api.inspect(native(tmp_path, tied=tied), consumers="vllm")
    assert {str(entry.outcome) for entry in inspection.consumers} == {"unknown"}
    (found,) = [entry for entry in inspection.findings if entry.rule == "TIE012"]
    assert found.message.startswith("consolidated.safetensors is in Mistral's own format.")
    assert found.message.endswith(f"--embed {EMBED} --head {HEAD}.")
    assert inspection.head.input_embedding and inspection.head.input_embedding.name == EMBED
    named = api.inspect(tmp_path, embed=EMBED, head=HEAD)
    assert named.head.output_head and named.head.output_head.stored is not tied
