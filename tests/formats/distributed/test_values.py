"""Values of tensors that several ranks stored: the same as torch reads, and proved equal over every chunk."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import tieconv as api
from tieconv.checkpoint.inspection import State
from tieconv.opened import opened, tensor_reader

torch = pytest.importorskip("torch")

from tests.formats.distributed.save_chunks import Box, mesh, numbers, random_boxes, save_chunks  # noqa: E402

EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
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
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8], ids=str)
def test_dense_bytes_are_those_of_torch(case: str, dtype: Any, tmp_path: Path) -> None:
    table = numbers(SHAPE, dtype)
    folder = save_chunks(tmp_path / "c", {EMBED: table}, {EMBED: MESHES[case]}, ranks=3)
    assert torch.equal(torch_values(folder)[EMBED], table)
    assert dense_bytes(folder, EMBED) == table.view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("first", MESHES)
@pytest.mark.parametrize("second", MESHES)
def test_equal_tables_in_other_chunks(first: str, second: str, tmp_path: Path) -> None:
    """Identical whatever the chunks are; one other element makes the tables different."""
    table = numbers(SHAPE)
    boxes = {EMBED: MESHES[first], HEAD: MESHES[second]}
    assert pair_state(save_chunks(tmp_path / "a", {EMBED: table, HEAD: table}, boxes)) is State.IDENTICAL
    changed = table.clone()
    changed[-1, -1] += 1
    assert pair_state(save_chunks(tmp_path / "b", {EMBED: table, HEAD: changed}, boxes)) is not State.IDENTICAL


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
    with pytest.raises(UnreadableError) as caught:
        pair_state(folder)
    assert caught.value.code == "dcp.overlap"
