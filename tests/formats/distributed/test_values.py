"""Chunks of several ranks: values as torch reads them, equality over every chunk, and hostile metadata."""

from __future__ import annotations

import pickle
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tieconv as api
from tests.formats.distributed.save_chunks import Box, mesh, numbers, random_boxes, save_chunks
from tests.lazy import torch
from tests.loops import case, fresh
from tests.refusals import failure_of
from tieconv.checkpoint.inspection import State
from tieconv.errors import TieconvError
from tieconv.opened import opened, tensor_reader

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")


EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"
SHAPE = (24, 10)
MESHES: dict[str, list[Box]] = {
    "whole": mesh(SHAPE, (1, 1)),
    "rows": mesh(SHAPE, (4, 1)),
    "uneven rows": mesh(SHAPE, (7, 1)),
    "columns": mesh(SHAPE, (1, 3)),
    "two dimensions": mesh(SHAPE, (5, 3)),
    "empty shard": [*mesh(SHAPE, (2, 1)), ((24, 0), (0, 10))],
}


def dense_bytes(folder: Path, name: str) -> bytes:
    """Return the bytes that tieconv reads for a tensor, in blocks that end within elements."""
    with opened(str(folder)) as (_, files, _):
        checkpoint = api.inspect(folder, depth="header").checkpoint
        reader = tensor_reader(checkpoint, files)
        span = checkpoint.tensors[name].range
        out = bytearray(span.size)
        for start in range(0, span.size, 13):
            reader.read_into(span, start, memoryview(out)[start : start + 13])
        return bytes(out)


def torch_values(folder: Path) -> dict[str, Any]:
    """Return the tensors by torch's own reader."""
    from torch.distributed.checkpoint import FileSystemReader
    from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
    from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

    state: dict[str, Any] = {}
    reader = FileSystemReader(folder)
    _load_state_dict(state, storage_reader=reader, planner=_EmptyStateDictLoadPlanner(), no_dist=True)
    return state


def pair_state(folder: Path) -> State:
    tie = api.inspect(folder, depth="full", embed=EMBED, head=HEAD).word_tie
    assert tie is not None
    return next(member.state for member in tie.members if member.name == HEAD)


@pytest.mark.parametrize("case", MESHES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "uint8"])
def test_dense_bytes_are_those_of_torch(case: str, dtype: str, tmp_path: Path) -> None:
    table = numbers(SHAPE, getattr(torch, dtype))
    folder = save_chunks(tmp_path / "c", {EMBED: table}, {EMBED: MESHES[case]}, ranks=3)
    assert torch.equal(torch_values(folder)[EMBED], table)
    assert dense_bytes(folder, EMBED) == table.view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("first", MESHES)
def test_equal_tables_in_other_chunks(first: str, tmp_path: Path) -> None:
    """Identical whatever the chunks are; one other element makes the tables different."""
    for second in MESHES:
        with case(second):
            folder = fresh(tmp_path)
            table = numbers(SHAPE)
            boxes = {EMBED: MESHES[first], HEAD: MESHES[second]}
            assert pair_state(save_chunks(folder / "a", {EMBED: table, HEAD: table}, boxes)) is State.IDENTICAL
            changed = table.clone()
            changed[-1, -1] += 1
            assert pair_state(save_chunks(folder / "b", {EMBED: table, HEAD: changed}, boxes)) is not State.IDENTICAL


@pytest.mark.sampled(20)
@pytest.mark.parametrize("seed", range(60))
def test_one_other_element_is_always_seen(seed: int, tmp_path: Path) -> None:
    """Random shapes and random chunks of both tensors: equal is proved, and any one other byte is found."""
    rng = random.Random(seed)
    shape = tuple(rng.randint(1, 12) for _ in range(rng.choice((1, 2, 2, 2, 3, 4))))
    table = numbers(shape, rng.choice((torch.float32, torch.float16, torch.float64)))
    boxes = {name: random_boxes(rng, shape, rng.randrange(8)) for name in (EMBED, HEAD)}
    folder = save_chunks(tmp_path / "a", {EMBED: table, HEAD: table}, boxes, ranks=rng.randint(1, 4))
    expected = table.view(torch.uint8).numpy().tobytes()
    assert dense_bytes(folder, EMBED) == dense_bytes(folder, HEAD) == expected
    changed = table.clone()
    changed.view(-1)[rng.randrange(changed.numel())] += 1000
    folder = save_chunks(tmp_path / "b", {EMBED: table, HEAD: changed}, boxes)
    assert dense_bytes(folder, HEAD) == changed.view(torch.uint8).numpy().tobytes() != expected


def test_strided_chunks(tmp_path: Path) -> None:
    """A rank may save a transposed tensor: torch keeps its strides."""
    import torch.distributed.checkpoint as dcp

    table = numbers((6, 4)).t()
    folder = tmp_path / "c"
    dcp.save(
        {EMBED: table, "scalar": torch.tensor(3.0), "empty": torch.zeros(0, 4)}, checkpoint_id=folder, no_dist=True
    )
    assert dense_bytes(folder, EMBED) == table.contiguous().numpy().tobytes()
    assert dense_bytes(folder, "scalar") == torch.tensor(3.0).numpy().tobytes()


def test_large_reads_cross_many_runs(tmp_path: Path) -> None:
    """Blocks of a comparison begin and end within the runs of column chunks."""
    table = torch.randn(700, 531)
    boxes = {EMBED: mesh(table.shape, (3, 4)), HEAD: mesh(table.shape, (1, 8))}
    folder = save_chunks(tmp_path / "c", {EMBED: table, HEAD: table}, boxes, ranks=4)
    assert pair_state(folder) is State.IDENTICAL


def test_chunks_that_overlap(tmp_path: Path) -> None:
    """Two ranks may store the same rows, if they agree."""
    from tieconv.errors import UnreadableError

    table = numbers(SHAPE)
    boxes = {EMBED: [((0, 0), (14, 10)), ((10, 0), (14, 10))]}
    folder = save_chunks(tmp_path / "c", {EMBED: table, HEAD: table}, boxes)
    assert pair_state(folder) is State.IDENTICAL
    file = folder / "__1_0.distcp"
    data = bytearray(file.read_bytes())
    position = data.index(table[10:].numpy().tobytes())
    data[position] ^= 1
    file.write_bytes(data)
    assert failure_of(pair_state, UnreadableError, folder).code == "dcp.overlap"


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
