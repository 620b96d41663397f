"""The metadata of torch's distributed checkpoints: read without running anything of it."""

from __future__ import annotations

import dataclasses
import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import tieconv as api
from tests.lazy import torch
from tests.refusals import failure_of
from tieconv.checkpoint.inspection import State
from tieconv.cli import main
from tieconv.errors import RefusedError, TieconvError
from tieconv.formats import dcp

EMBED, HEAD = "model.model.embed_tokens.weight", "model.lm_head.weight"
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `torch.distributed.checkpoint.save` writes for a model, an optimizer and a counter."""
    import torch.distributed.checkpoint as dcp

    state: dict[str, Any] = {
        "model": {
            "model.embed_tokens.weight": torch.zeros(8, 4),
            "lm_head.weight": torch.ones(8, 4, dtype=torch.bfloat16),
            "codes": torch.zeros(3, dtype=torch.float8_e4m3fn),
        },
        "optim": {"lr": 0.1, "state": {"exp_avg": torch.zeros(8, 4)}},
        "step": 3,
        "scalar": torch.tensor(1.0),
        "empty": torch.zeros(0, 4),
    }
    folder = tmp_path_factory.mktemp("dcp") / "checkpoint"
    dcp.save(state, checkpoint_id=folder, no_dist=True)
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "checkpoint"))


def code(path: Path) -> str:
    return failure_of(api.inspect, TieconvError, path).code


def test_names_shapes_and_types(saved: Path) -> None:
    """The tensors of the metadata, by torch's own reader."""
    from torch.distributed.checkpoint import FileSystemReader

    metadata = FileSystemReader(saved).read_metadata().state_dict_metadata
    expected = {name: tuple(entry.size) for name, entry in metadata.items() if hasattr(entry, "size")}
    checkpoint = api.inspect(saved).checkpoint
    tensors = {**checkpoint.tensors, **checkpoint.table.training}
    assert set(checkpoint.table.training) == {"optim.state.exp_avg"}
    assert {name: record.shape for name, record in tensors.items()} == expected
    assert (tensors[EMBED].dtype, tensors[HEAD].dtype, tensors["model.codes"].dtype) == ("F32", "BF16", "F8_E4M3")
    assert tensors[HEAD].nbytes == 64


@pytest.mark.parametrize(("depth", "state"), [("header", State.UNREAD), ("full", State.DISTINCT)])
def test_states_by_depth(saved: Path, depth: str, state: State) -> None:
    """With the headers alone nothing is claimed; with the bytes the head is another table."""
    inspection = api.inspect(saved, depth=depth)
    assert inspection.word_tie is not None
    states = {member.name: member.state for member in inspection.word_tie.members}
    assert states == {EMBED: State.CANONICAL, HEAD: state}
    assert [finding.rule for finding in inspection.findings] == ["TIE012"]


@pytest.mark.parametrize("name", [".metadata", "__0_0.distcp"])
def test_by_one_of_its_files(saved: Path, name: str) -> None:
    assert EMBED in api.inspect(saved / name).checkpoint.tensors


@pytest.mark.parametrize("plan", [api.plan_untie, api.plan_retie])
def test_no_command_writes_it(plan: Any, saved: Path) -> None:
    """A refusal with the next step."""
    error = failure_of(plan, RefusedError, saved)
    assert error.code == "format.read-only" and "convert" in error.hint


def test_incomplete_checkpoints(folder: Path) -> None:
    """A missing file, a short one, missing metadata: each says which."""
    data = folder / "__0_0.distcp"
    whole = data.read_bytes()
    data.write_bytes(whole[:-400])
    assert code(folder) == "dcp.truncated"
    data.unlink()
    (folder / "__1_0.distcp").write_bytes(whole)
    assert code(folder) == "dcp.absent-file"
    (folder / ".metadata").unlink()
    assert code(folder) == "dcp.no-metadata"


def test_path_in_the_metadata_cannot_leave(folder: Path) -> None:
    metadata = folder / ".metadata"
    metadata.write_bytes(metadata.read_bytes().replace(b"__0_0.distcp", b"../../passwd"))
    assert code(folder) == "dcp.escape"


class _Canary:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_nothing_of_the_pickle_runs(folder: Path, tmp_path: Path) -> None:
    """A payload is refused by the name that it calls, and does not fire."""
    canary = tmp_path / "canary"
    (folder / ".metadata").write_bytes(pickle.dumps(_Canary(canary)))
    assert code(folder) == "dcp.global"
    assert not canary.exists()


MALFORMED = {
    "empty": b"",
    "no pickle": b"\x93NUMPY",
    "another value": pickle.dumps({"a": 1}),
    "an open end": pickle.dumps({"a": 1})[:-1],
    "no stack": b"\x80\x04s.",
    "no memo": b"\x80\x04h\x07.",
    "a call of a number": b"\x80\x04K\x01)R.",
    "a long number": b"\x80\x04\x8b\xff\xff\xff\x7f.",
    "persistent id": b"\x80\x04X\x01\x00\x00\x00aQ.",
    "an extension": b"\x80\x04\x82\x01.",
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed(case: str, folder: Path) -> None:
    (folder / ".metadata").write_bytes(MALFORMED[case])
    assert code(folder) == "dcp.malformed"


def test_every_cut_is_refused(folder: Path) -> None:
    """No prefix of the metadata passes for it, and none is an unexpected failure."""
    metadata = folder / ".metadata"
    whole = metadata.read_bytes()
    for length in range(0, len(whole) - 1, 13):
        metadata.write_bytes(whole[:length])
        assert code(folder) == "dcp.malformed"


def test_flipped_bytes_never_crash(folder: Path) -> None:
    """Every damaged byte gives a checkpoint or a sentence."""
    metadata = folder / ".metadata"
    whole = metadata.read_bytes()
    for offset in range(0, len(whole), 5):
        damaged = bytearray(whole)
        damaged[offset] ^= 0x15
        metadata.write_bytes(damaged)
        try:
            api.inspect(folder)
        except TieconvError as error:
            assert error.code.startswith(("dcp.", "path."))


def test_size_is_limited(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dcp, "LIMIT", 10)
    assert code(folder) == "dcp.too-large"


def test_diff_of_a_model_with_itself(saved: Path) -> None:
    """Every byte is compared, whatever the chunks are."""
    result = CliRunner().invoke(main, ["diff", str(saved), str(saved)])
    assert (result.exit_code, result.stderr) == (0, ""), result.output


def test_layouts_and_memory_formats(folder: Path) -> None:
    """What torch refuses in a tensor's properties, tieconv refuses: unknown layouts, formats, and a cut frame."""
    whole = (folder / ".metadata").read_bytes()
    named = attribute_of_the_class(whole)
    damaged = {
        "memory format": whole.replace(NUMBER, NUMBER.replace(b"K\x00", b"K\x07")),
        "name of a format": named.replace(b"CONTIGUOUS_FORMAT", b"CONTIGUOUS_FORMER"),
        "attribute of another class": named.replace(b"_MEM_FORMAT_ENCODING", b"ChunkStorageMetadata"),
        "layout": whole.replace(b"torch.strided", b"torch.strange"),
        "frame": whole[:3] + (len(whole) + 1).to_bytes(8, "little") + whole[11:],
    }
    assert whole[2:3] == b"\x95"
    for case, data in damaged.items():
        assert data != whole, case
        (folder / ".metadata").write_bytes(data)
        with pytest.raises(Exception, match=r"."):
            pickle.loads(data)
        assert code(folder) == "dcp.malformed", case
    for data in (whole, named):
        (folder / ".metadata").write_bytes(data)
        assert pickle.loads(data) and len(api.inspect(folder).checkpoint.tensors) == 5


NUMBER = b"_MEM_FORMAT_ENCODING\x94\x93\x94K\x00\x85"


def attribute_of_the_class(metadata: bytes) -> bytes:
    """Metadata as Python 3.11.0 to 3.11.3 writes it, whose members of an Enum are attributes of the class."""
    if NUMBER not in metadata:
        pytest.skip("this Python writes members of an Enum as attributes")
    before, _, after = metadata.partition(b"h\x00\x8c\x14" + NUMBER)
    named = b"\x8c\x08builtins\x8c\x07getattr\x93h\x00\x8c\x14_MEM_FORMAT_ENCODING\x94\x93\x94"
    data = before + named + b"\x8c\x17TORCH_CONTIGUOUS_FORMAT\x86" + after
    return data[:3] + (len(data) - 11).to_bytes(8, "little") + data[11:]


def test_a_chunk_without_an_offset(folder: Path) -> None:
    """torch looks a chunk up by its name and offset, so it does not find this one."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.api import CheckpointException

    metadata = folder / ".metadata"
    whole = pickle.loads(metadata.read_bytes())
    whole.storage_data = {
        dataclasses.replace(index, offset=None) if index.fqn == HEAD else index: stored
        for index, stored in whole.storage_data.items()
    }
    metadata.write_bytes(pickle.dumps(whole, 4))
    with pytest.raises(CheckpointException) as caught:
        dcp.load({HEAD: torch.zeros(8, 4, dtype=torch.bfloat16)}, checkpoint_id=folder, no_dist=True)
    assert isinstance(caught.value.failures[0][0], KeyError)
    assert code(folder) == "dcp.malformed"


def test_a_storage_meta_of_another_type(folder: Path) -> None:
    """torch sets an attribute of it, so it must be absent, ``None`` or a `StorageMeta`."""
    from torch.distributed.checkpoint import FileSystemReader

    metadata = folder / ".metadata"
    whole = pickle.loads(metadata.read_bytes())
    assert type(whole.storage_meta).__name__ == "StorageMeta"
    for value, refused in ((None, False), ((), True), ({}, True), (1, True)):
        metadata.write_bytes(pickle.dumps(dataclasses.replace(whole, storage_meta=value), 4))
        if refused:
            with pytest.raises(AttributeError):
                FileSystemReader(folder).read_metadata()
            assert code(folder) == "dcp.malformed", value
        else:
            FileSystemReader(folder).read_metadata()
            api.inspect(folder)


def test_below_the_model_directory(tmp_path: Path) -> None:
    """FSDP of accelerate saves the model and the optimizer in two directories below: `inspect` reads the model."""
    import torch.distributed.checkpoint as dcp

    table = torch.zeros(8, 4)
    state = {"model": {"model.embed_tokens.weight": table, "lm_head.weight": table.clone()}}
    model = tmp_path / "checkpoint-10" / "pytorch_model_fsdp_0"
    dcp.save(state, checkpoint_id=model, no_dist=True)
    dcp.save(
        {"optimizer": {"step": torch.zeros(1)}}, checkpoint_id=tmp_path / "checkpoint-10" / "optimizer_0", no_dist=True
    )
    assert api.inspect(tmp_path / "checkpoint-10").checkpoint.source == str(model)
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "tie_word_embeddings": True}
    (model / "config.json").write_text(json.dumps(config), encoding="utf-8")
    finding = next(entry for entry in api.inspect(tmp_path / "checkpoint-10").findings if entry.rule == "TIE002")
    assert finding.remedy is not None
    assert finding.remedy.command == f"tieconv convert {model} --to safetensors -o OUT"
    assert finding.remedy.action is None, "check --fix must not change the format"
    assert CliRunner().invoke(main, ["convert", str(model), "--to", "safetensors"]).exit_code == 0
    shutil.copytree(model, tmp_path / "checkpoint-10" / "pytorch_model_fsdp_1")
    assert code(tmp_path / "checkpoint-10") == "format.below"
