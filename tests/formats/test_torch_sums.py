"""A storage that is read whole is held to its checksum: bit rot is neither claimed equal nor handed on."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import tieconv
import tieconv as api
from tests.lazy import torch
from tieconv.checkpoint.weight_file import ByteRange, Storage, TensorRecord, WeightFile
from tieconv.cli import main
from tieconv.errors import UnreadableError
from tieconv.formats import read_checkpoint
from tieconv.sources.digest import Sums
from tieconv.sources.local import locate, open_files

EMBED, HEAD, NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"
CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "tie_word_embeddings": False}


def state(*, aliased: bool = False) -> dict[str, torch.Tensor]:
    embed = torch.randn(300, 64, generator=torch.Generator().manual_seed(1))
    return {EMBED: embed, HEAD: embed if aliased else embed.clone(), NORM: torch.ones(64)}


def single(root: Path) -> Path:
    return saved(root, {"pytorch_model.bin": state()})


def aliased(root: Path) -> Path:
    return saved(root, {"pytorch_model.bin": state(aliased=True)})


def sharded(root: Path) -> Path:
    whole = state()
    names = {"pytorch_model-00001-of-00002.bin": (EMBED, NORM), "pytorch_model-00002-of-00002.bin": (HEAD,)}
    shards = {shard: {name: whole[name] for name in held} for shard, held in names.items()}
    saved(root, shards)
    index = {"metadata": {}, "weight_map": {name: shard for shard, held in names.items() for name in held}}
    (root / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    return root


def saved(root: Path, files: dict[str, dict[str, torch.Tensor]]) -> Path:
    root.mkdir()
    for name, tensors in files.items():
        torch.save(tensors, root / name)
    (root / "config.json").write_text(json.dumps(CONFIG))
    return root


def rot(root: Path, *tensors: str) -> None:
    """Flip a bit of each of the tensors, the same one."""
    with open_files(root) as files:
        checkpoint = read_checkpoint(locate(str(root)), files)
    for span in {checkpoint.tensors[tensor].range for tensor in tensors}:
        path = root / span.file
        data = bytearray(path.read_bytes())
        data[span.start + 4099] ^= 4
        path.write_bytes(data)


Make = Callable[[Path], Path]
MODELS: list[Make] = [single, sharded, aliased]
WRITES: dict[str, tuple[str, ...]] = {
    "convert": ("convert", "--to", "safetensors"),
    "convert in shards": ("convert", "--to", "safetensors", "--max-shard-size", "100KB"),
    "convert to torch": ("convert", "--to", "torch"),
    "convert to torch in shards": ("convert", "--to", "torch", "--max-shard-size", "100KB"),
    "retie": ("retie",),
    "dedup": ("dedup",),
    "bias zero": ("bias", "zero"),
    "set-tie": ("set-tie", "false"),
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("make", MODELS)
def test_no_write_hands_damage_on(make: Make, write: str, tmp_path: Path) -> None:
    """Both copies rot alike, so they are equal still: the file is blamed in one sentence, and nothing is written."""
    source = make(tmp_path / "source")
    rot(source, EMBED, HEAD)
    result = CliRunner().invoke(main, [*WRITES[write], str(source), "-o", str(tmp_path / "out")])
    assert result.exit_code == 2, result.output
    error, hint = result.stderr.splitlines()[-2:]
    assert "pytorch_model" in error and "do not match their checksum" in error
    assert hint == "hint: the file is damaged: fetch it again"
    assert os.listdir(tmp_path) == ["source"]


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("make", MODELS)
def test_sound_files_are_written(make: Make, write: str, tmp_path: Path) -> None:
    """The checks above would prove nothing if every write were refused."""
    source = make(tmp_path / "source")
    result = CliRunner().invoke(main, [*WRITES[write], str(source), "-o", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("make", [single, sharded])
@pytest.mark.parametrize("words", [("inspect",), ("inspect", "--depth", "full"), ("check",), ("analyze",)], ids=str)
def test_no_equality_is_claimed(make: Make, words: tuple[str, ...], tmp_path: Path) -> None:
    """Two rotten copies are equal, and nobody says so."""
    source = make(tmp_path / "source")
    rot(source, EMBED, HEAD)
    result = CliRunner().invoke(main, [*words, str(source)])
    assert result.exit_code == 2, result.output
    assert "do not match their checksum" in result.output and "identical" not in result.output


def test_a_comparison_of_two_files(tmp_path: Path) -> None:
    """`diff` reads both sides whole."""
    first, second = single(tmp_path / "one"), single(tmp_path / "two")
    for root in (first, second):
        rot(root, EMBED)
    with pytest.raises(UnreadableError, match="do not match their checksum"):
        tieconv.diff(first, second)


@pytest.mark.parametrize("verify", ["full", "structure"])
@pytest.mark.parametrize("make", MODELS)
def test_safetensors_has_no_checksum_to_tell(make: Make, verify: Any, tmp_path: Path) -> None:
    """A tensor that no claim is about is held to its checksum too, whatever is verified: the result could not tell."""
    source = make(tmp_path / "source")
    with open_files(source) as files:
        span = read_checkpoint(locate(str(source)), files).tensors[NORM].range
    data = bytearray((source / span.file).read_bytes())
    data[span.start] ^= 1
    (source / span.file).write_bytes(data)
    with pytest.raises(UnreadableError, match=f"tensor {NORM} do not match their checksum"):
        api.plan_convert("safetensors", source).execute(tmp_path / "out", verify=verify)
    assert os.listdir(tmp_path) == ["source"]


def test_reads_of_any_order() -> None:
    """Only what is read in order counts; a new start begins anew; what lies between storages is passed over."""
    data = bytes(range(200))
    spans = [ByteRange("f", 10, 60), ByteRange("f", 64, 164)]
    storages = tuple(
        Storage(str(number), span, zlib.crc32(data[span.start : span.end])) for number, span in enumerate(spans)
    )
    records = tuple(
        TensorRecord(storage.key, "U8", (storage.range.size,), storage.range, None, storage.key) for storage in storages
    )
    file = WeightFile("f", 200, 10, records, None, storages)
    sums = Sums()
    sums.expect([file])
    view = memoryview(data)

    def read(start: int, end: int, content: memoryview = view) -> list[bool]:
        sums.seen("f", start, content[start:end])
        return [sums.is_right(storage) for storage in storages]

    assert read(64, 100) == [False, False]
    assert read(120, 164) == [False, False]  # a gap
    assert read(10, 30) == [False, False]
    assert read(10, 40) == [False, False]  # anew
    assert read(40, 110) == [True, False]  # over the border, into what was begun
    assert read(64, 164) == [True, True]
    assert read(0, 200) == [True, True]
    sums.seen("other", 0, view)
    damaged = Sums()
    damaged.expect([file])
    bad = bytearray(data)
    bad[150] ^= 1
    with pytest.raises(UnreadableError, match="f: the bytes of tensor 1 do not match their checksum"):
        damaged.seen("f", 0, memoryview(bad))
    assert damaged.is_right(storages[0])
