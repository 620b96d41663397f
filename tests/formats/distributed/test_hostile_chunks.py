"""Damaged and hostile chunks and metadata: one sentence, soon, and nothing runs."""

from __future__ import annotations

import pickle
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tieconv as api
from tieconv.errors import TieconvError

torch = pytest.importorskip("torch")

from tests.formats.distributed.save_chunks import Box, mesh, numbers, save_chunks  # noqa: E402

EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"
SHAPE = (24, 10)
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")


def code(folder: Path) -> str:
    with pytest.raises(TieconvError) as caught:
        api.inspect(folder, depth="full", embed=EMBED, head=HEAD)
    assert caught.value.message and caught.value.hint
    return caught.value.code


BOXES: dict[str, tuple[list[Box], str]] = {
    "a hole": (mesh(SHAPE, (4, 1))[:-1], "dcp.hole"),
    "a hole in the middle": ([*mesh(SHAPE, (3, 2))[:2], *mesh(SHAPE, (3, 2))[3:]], "dcp.hole"),
}


@pytest.mark.parametrize("case", BOXES)
def test_holes(case: str, tmp_path: Path) -> None:
    boxes, expected = BOXES[case]
    assert code(save_chunks(tmp_path / "c", {EMBED: numbers(SHAPE)}, {EMBED: boxes})) == expected


def metadata_with(folder: Path, change: Callable[[Any], object]) -> Path:
    """Return the checkpoint with a changed `.metadata`."""
    save_chunks(folder, {EMBED: numbers(SHAPE), HEAD: numbers(SHAPE)}, {EMBED: mesh(SHAPE, (2, 1))})
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    change(metadata)
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    return folder


def _resize(side: int) -> Callable[[Any], object]:
    def change(metadata: Any) -> None:
        metadata.state_dict_metadata[EMBED].size = torch.Size((side, 10))

    return change


def _move(metadata: Any) -> None:
    for info in metadata.storage_data.values():
        info.offset += 1
        info.length -= 1


def _swap(metadata: Any) -> None:
    """Every item is at the offset of another: the bytes are a tensor, but of another shape."""
    first, *_, second = metadata.storage_data
    data = metadata.storage_data
    data[first], data[second] = data[second], data[first]


def _retype(metadata: Any) -> None:
    for entry in metadata.state_dict_metadata.values():
        entry.properties.dtype = torch.int32


CHANGES: dict[str, tuple[Callable[[Any], object], str]] = {
    "a huge shape": (_resize(1 << 40), "dcp.hole"),
    "more than 64 bits": (_resize((1 << 62) - 1), "dcp.malformed"),
    "a smaller shape": (_resize(20), "dcp.outside"),
    "moved items": (_move, "dcp.item"),
    "items of another shape": (_swap, "dcp.item"),
    "another dtype": (_retype, "dcp.item"),
    "no chunk": (lambda metadata: metadata.state_dict_metadata[EMBED].chunks.clear(), "dcp.hole"),
    "no place": (lambda metadata: metadata.storage_data.clear(), "dcp.malformed"),
}  # fmt: skip


@pytest.mark.parametrize("case", CHANGES)
def test_changed_metadata(case: str, tmp_path: Path) -> None:
    change, expected = CHANGES[case]
    started = time.process_time()
    assert code(metadata_with(tmp_path / "c", change)) == expected
    assert time.process_time() - started < 5


def test_an_item_that_runs_code(tmp_path: Path) -> None:
    """A pickle in a chunk's archive that calls a function is refused by its name, and does not run."""
    folder = metadata_with(tmp_path / "c", lambda _: None)
    canary = tmp_path / "canary"

    class Payload:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (canary,)

    torch.save(Payload(), tmp_path / "item")
    item = (tmp_path / "item").read_bytes()
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    for info in metadata.storage_data.values():
        info.offset, info.length = 0, len(item)
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    for file in folder.glob("*.distcp"):
        file.write_bytes(item)
    assert code(folder) == "dcp.item"
    assert not canary.exists()


def test_every_cut_of_a_chunk_file(tmp_path: Path) -> None:
    folder = metadata_with(tmp_path / "c", lambda _: None)
    file = folder / "__0_0.distcp"
    whole = file.read_bytes()
    for length in range(0, len(whole), 97):
        file.write_bytes(whole[:length])
        assert code(folder) in {"dcp.truncated", "dcp.absent-file"}
    file.unlink()
    assert code(folder) == "dcp.absent-file"


def test_values_that_are_no_tensors_are_not_read(tmp_path: Path) -> None:
    """An item that the metadata calls bytes is a pickle of any object: nothing opens it."""
    import torch.distributed.checkpoint as dcp

    folder = tmp_path / "c"
    dcp.save({EMBED: numbers(SHAPE), "sampler": {1, 2}}, checkpoint_id=folder, no_dist=True)
    inspection = api.inspect(folder, depth="full")
    assert set(inspection.checkpoint.tensors) == {EMBED}
    shutil.rmtree(folder)
